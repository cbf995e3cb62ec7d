"""Every case is built, and its contenders compute the same.

Promise 42 of docs/reliability.md.
"""

import jax
import pytest

from benchmarks.case import case, CASES, CONTENDERS
from benchmarks.cases import choose, GROUPS, UnknownCase
from benchmarks.timing import check_equal, OutputsDiffer


pytestmark = [pytest.mark.one_engine, pytest.mark.usefixtures("as_users_have_it")]


# These compile for so long that two contenders are compared.
_LONG = {
    "adam_103_leaves",
    "cnn",
    "depth_100",
    "gan",
    "gpt_adamw",
    "lambda_in_loop",
    "loop_300",
    "neural_ode",
}
# 2,000 compilations. `statics_1` is built by the same function.
_TOO_LONG = {"statics_1000"}

_compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **kwargs: _compiled.append(event)
)


def _compilations():
    return sum("backend_compile" in event for event in _compiled)


@pytest.mark.parametrize("name", sorted(CASES.keys() - _TOO_LONG))
def test_contenders_of_a_case_agree(name):
    found = CASES[name]
    calls = found.build(found.contenders[-2:] if name in _LONG else ())
    # The weak types of a state are gone after three calls.
    for _ in range(3):
        check_equal(calls)
    before = _compilations()
    for call in calls.values():
        call()
    # Otherwise the benchmark would time a compilation.
    assert (_compilations() > before) == found.first


def test_makers_are_those_that_a_case_declares():
    for found in CASES.values():
        assert {*found.contenders} <= CONTENDERS.keys()
        if found.name not in _LONG | _TOO_LONG:
            assert {*found.contenders} <= found.makers().keys(), found.name


def test_a_group_stands_for_its_cases():
    assert choose("identity, adam_19_leaves") == ["identity", "adam_19_leaves"]
    assert choose("table")[:2] == ["identity", "mlp_8"]
    assert set(choose("all")) == CASES.keys()
    assert {x.group for x in CASES.values()} == GROUPS.keys()
    assert len(choose("zoo")) == 15


@pytest.mark.parametrize("names", ["nonsense", "identity,nonsense", "", " , "])
def test_an_unknown_case_is_refused_in_a_line(names):
    with pytest.raises(UnknownCase) as e:
        choose(names)
    assert "\n" not in str(e.value)


def test_a_name_is_of_one_case():
    with pytest.raises(AssertionError, match="two cases are named identity"):
        case("table", "", name="identity")(dict)


@pytest.mark.parametrize(
    "other", [jax.numpy.ones(3), jax.numpy.zeros(2), (jax.numpy.ones(2),) * 2, None]
)
def test_contenders_that_differ_are_refused(other):
    calls = {"jit": lambda: jax.numpy.ones(2), "ours": lambda: other}
    with pytest.raises(OutputsDiffer, match="ours and jit return different results"):
        check_equal(calls)
