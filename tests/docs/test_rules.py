"""Each section of docs/rules.md is run: the program that has the rule, and its edit."""

import contextlib
import gc
import io
import linecache
import re

import jax
import pytest

from eqx_fastjit.insight import doctor
from eqx_fastjit.insight.rules import each_call
from eqx_fastjit.insight.rules._classes import RULES
from eqx_fastjit.insight.show._sections import sections

from .pages import ROOT


_BLOCK = re.compile(r"^```python(?: title=\"([^\"\n]*)\")?\n(.*?)^```$", re.M | re.S)
_PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
_PRELUDE = next(x[2] for x in _BLOCK.finditer(_PAGE) if not x[1])
# What has no program: a price, and what is about a whole run.
_WITHOUT = {
    *("other-program", "run-cache", "callbacks-not-kept"),
    *("equinox-jit", "waits", "blocking-call"),
}
# What is measured: rows of these may be beside those of any section.
_MEASURED = {rule.name for rule in each_call.RULES}


def _programs(rule):
    return [(x[1], x[2]) for x in _BLOCK.finditer(sections()[rule])]


def _run(name, source):
    """What a program prints, and the rows of its report."""
    printed, file = io.StringIO(), f"{name}.py"
    # Where loops are looked for.
    linecache.cache[file] = len(source), None, source.splitlines(keepends=True), file
    scope = {"__name__": "__rules__"}
    exec(_PRELUDE, scope)
    jax.block_until_ready(jax.numpy.ones(3) / 2)

    gc.collect()  # of what other tests have left: in a trace it would count as that
    with (
        jax.numpy_dtype_promotion("standard"),  # as users have it
        doctor(least=0.0) as report,
        contextlib.redirect_stdout(printed),
    ):
        exec(compile(source, file, "exec"), scope)

    others = _MEASURED - {name.split()[0]}
    rows = [x for x in report.rows if x.parts[0].rule not in others]
    return printed.getvalue(), rows


def test_each_rule_has_a_section():
    """Which `eqx-fastjit rule` prints."""
    assert {*sections()} == {*RULES}
    assert {x for x in sections() if not _programs(x)} == _WITHOUT


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("rule", [x for x in RULES if x not in _WITHOUT])
def test_a_section_is_right(rule):
    """The first program has the rule. The second has none, and prints the same."""
    (title, before), (title_after, after) = _programs(rule)

    printed, rows = _run(f"{rule} before", before)
    of_rule = [row for row in rows if any(part.rule == rule for part in row.parts)]
    assert len(of_rule) == 1, [part.rule for row in rows for part in row.parts]
    (row,) = of_rule
    assert rule == "stale-value" or row.saves > 0 or row.bytes
    # A title such as "4 compilations of 2 programs".
    if "program" in title and (counts := re.findall(r"\d+", title)):
        assert [row.compilations, row.programs] == [int(count) for count in counts]

    printed_after, rows = _run(f"{rule} after", after)
    assert not [x for x in rows if x.saves > x.later or x.is_wrong or x.bytes]
    assert (printed == printed_after) == (title_after != "other results")
