"""Versions that are stated in several places are the same in all of them."""

import ast
import contextlib
import re
import tomllib
from pathlib import Path

import pytest


_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_OF_PROJECT = _PROJECT["project"]
_VERSION = r"(\d+(?:\.\d+)+)"


pytestmark = pytest.mark.one_engine


def _read(name: str) -> str:
    # Sentences may be split over lines.
    return re.sub(r"\s+", " ", (_ROOT / name).read_text(encoding="utf-8"))


def _least() -> dict[str, str]:
    """The lowest versions that pyproject.toml permits."""
    out = dict(x.split(">=") for x in _OF_PROJECT["dependencies"])
    return out | {"python": _OF_PROJECT["requires-python"].removeprefix(">=")}


def _constants(name: str) -> dict[str, object]:
    """The constants of a script, without importing it."""
    out = {}
    for node in ast.parse((_ROOT / name).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with contextlib.suppress(ValueError):
                out[node.targets[0].id] = ast.literal_eval(node.value)
    return out


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/reliability.md", "CONTRIBUTING.md"]
)
def test_pages_tell_the_oldest_versions(page):
    text, least = _read(page), _least()
    said = {
        "python": re.findall(
            rf"(?:with|[Nn]eeds?|Promise.\*\*) Python {_VERSION}", text
        ),
        "jax": re.findall(rf"JAX {_VERSION}(?:,? or newer| and Equinox)", text)
        + re.findall(rf"tested with JAX {_VERSION}", text),
        "equinox": re.findall(rf"(?:[Nn]eeds|requires|and|,) Equinox {_VERSION}", text),
    }
    assert said["python"], f"{page} does not say which Python it needs"
    if page != "CONTRIBUTING.md":
        assert said["jax"] and said["equinox"], f"{page} does not say what it needs"
    for name, versions in said.items():
        assert set(versions) <= {least[name]}, f"{page} says {name} {versions}"


def test_jax_and_jaxlib_are_of_one_version():
    assert _least()["jax"] == _least()["jaxlib"]


def test_the_matrix_begins_with_the_oldest_versions():
    least, nox = _least(), _constants("noxfile.py")
    assert nox["JAX"]["oldest"] == f"jax=={least['jax']}"
    assert nox["EQUINOX"]["oldest"] == f"equinox=={least['equinox']}"
    assert nox["PYTHONS"][0] == nox["CORNERS"][0][0] == least["python"]
    classifiers = [f"Programming Language :: Python :: {p}" for p in nox["PYTHONS"]]
    classified = _OF_PROJECT["classifiers"]
    assert [c for c in classified if re.search(r":: 3\.\d+$", c)] == classifiers
    last = nox["PYTHONS"][-1]
    assert f"up to Python {last}" in _read("docs/reliability.md")


def test_tools_check_for_the_oldest_python():
    least, tool = _least()["python"], _PROJECT["tool"]
    assert tool["pyright"]["pythonVersion"] == least
    assert tool["ruff"]["target-version"] == f"py{least.replace('.', '')}"


def test_the_version_has_a_section_in_the_changelog():
    text = (_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## \[([^]]+)\](.*)$", text, re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    released = dict(sections[1:])
    assert re.fullmatch(r" - \d{4}-\d\d-\d\d", released[_OF_PROJECT["version"]])
    assert sections[1][0] == _OF_PROJECT["version"]
