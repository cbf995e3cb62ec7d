"""The pages that `doctor`, `bench` and `profile` write, in Chromium."""

import shutil
import subprocess
import sys

import pytest


_CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))),
    None,
)
_BROWSER_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PROGRAM = """
import equinox as eqx
import jax.numpy as jnp

@eqx.filter_jit
def f(x, n):
    return x * n

for n in range(4):
    f(jnp.ones(3), n)
"""
_COMMANDS = {
    "doctor": ["doctor", "--programs", "--html", "page.html", "a.py"],
    "profile": ["profile", "--calls", "20", "--html", "page.html", "a.py"],
}

# The lowest contrast between a text and its background (WCAG 2, relative luminance).
_LEAST_CONTRAST = """
() => {
    const numbers = color => color.match(/[\\d.]+/g).map(Number);
    const luminance = color => {
        const [r, g, b] = numbers(color).slice(0, 3).map(x => x / 255)
            .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const dark = matchMedia('(prefers-color-scheme: dark)').matches
        && getComputedStyle(document.documentElement).colorScheme.includes('dark');
    const behind = element => {
        for (; element; element = element.parentElement) {
            const color = getComputedStyle(element).backgroundColor;
            if (numbers(color)[3] !== 0) return color;
        }
        return dark ? 'rgb(18, 18, 18)' : 'rgb(255, 255, 255)';
    };
    let least = [21, ''];
    for (const element of document.body.querySelectorAll('*:not(svg, svg *)')) {
        const own = [...element.childNodes].filter(n => n.nodeType === Node.TEXT_NODE);
        if (!own.some(n => n.data.trim()) || !element.checkVisibility()) continue;
        const of = [getComputedStyle(element).color, behind(element)].map(luminance);
        const contrast = (Math.max(...of) + 0.05) / (Math.min(...of) + 0.05);
        if (contrast < least[0]) least = [contrast, element.outerHTML.slice(0, 200)];
    }
    return least;
}
"""


pytestmark = pytest.mark.one_engine


@pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("name", _COMMANDS)
def test_page_fits_and_can_be_read(name, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api")
    (tmp_path / "a.py").write_text(_PROGRAM)
    command = [sys.executable, "-m", "eqx_fastjit.cli", *_COMMANDS[name]]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    errors = []
    with playwright.sync_playwright() as p:
        browser = p.chromium.launch(
            executable_path=_CHROMIUM, args=list(_BROWSER_OPTIONS)
        )
        for width in (390, 1280):
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": 800}, color_scheme=scheme
                )
                page.on("console", lambda m: errors.append(m.text))
                page.on("pageerror", lambda e: errors.append(str(e)))
                page.goto((tmp_path / "page.html").as_uri())
                wider = "document.documentElement.scrollWidth > innerWidth"
                assert not page.evaluate(wider), f"wider than {width} px"
                contrast, element = page.evaluate(_LEAST_CONTRAST)
                assert contrast >= 4.5, f"{scheme}: {contrast:.2f} of {element}"
                page.close()
        if name == "doctor":
            page = browser.new_page()
            page.on("pageerror", lambda e: errors.append(str(e)))
            page.goto((tmp_path / "page.html").as_uri())
            use(page)
        browser.close()
    # pyinstrument's part requests fonts from elsewhere, which the page's policy blocks.
    assert [e for e in errors if "https://fonts.googleapis.com/" not in e] == []


def use(page):
    """Search, sort, and follow a link to a compilation."""
    rows = page.locator("#all-compilations tbody tr")
    assert rows.count() > 4
    page.fill("input[data-table=all-compilations]", "f static-churn")
    assert page.locator("#all-compilations tbody tr:visible").count() == 3
    page.fill("input[data-table=all-compilations]", "")
    column = "#all-compilations tbody td:nth-child(3)"
    for order in ("descending", "ascending"):
        page.click("#all-compilations th:nth-child(3) button")
        found = page.locator(column).evaluate_all("x => x.map(y => +y.dataset.value)")
        assert found == sorted(found, reverse=order == "descending")
    head = page.locator("#all-compilations th[aria-sort=ascending]")
    assert head.count() == 1
    section = page.locator("details.compilation", has_text="static-churn").first
    assert not section.get_by_text("HLO, as XLA optimized it").is_visible()
    identity = section.get_attribute("id")
    page.click(f"#all-compilations a[href='#{identity}']")
    section.get_by_text("memory read and written").wait_for()
    assert section.get_by_text("0 (int)").first.is_visible()
    assert not section.get_by_text("HloModule").is_visible()
    section.get_by_text("HLO, as XLA optimized it").click()
    section.get_by_text("HloModule").wait_for()
