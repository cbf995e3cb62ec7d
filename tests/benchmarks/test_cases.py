"""Every case and whole program is built, and contenders compute the same."""

import json

import jax
import numpy as np
import pytest

from benchmarks.case import CASES, CONTENDERS
from benchmarks.cases import choose, GROUPS
from benchmarks.programs import PROGRAMS
from benchmarks.timing import check_equal, OutputsDiffer
from tests.support.commands import command, ROOT


pytestmark = [pytest.mark.one_engine, pytest.mark.usefixtures("as_users_have_it")]


# These compile for so long that two contenders are compared.
_LONG = {
    "adam_103_leaves",
    "cnn",
    "decoder_cache",
    "depth_100",
    "gpt",
    "gpt_adamw",
    "gpt_small_step",
    "gru",
    "lambda_in_loop",
    "lora_step",
    "neural_ode",
    "unsorted_parameters",
}
# `statics_1`, `gpt_small_step` and `loop_100` are built by the same functions.
_TOO_LONG = {"statics_1000", "gpt_large_step", "loop_300"}

_events = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **kwargs: _events.append(event)
)


def _count_compilations():
    return sum("backend_compile" in event for event in _events)


@pytest.mark.parametrize("name", sorted(CASES.keys() - _TOO_LONG))
def test_contenders_of_a_case_agree(name):
    case = CASES[name]
    contenders = case.contenders
    if name in _LONG:
        contenders = contenders[-2:]
    calls = case.build(contenders)
    # The weak types of a state are gone after three calls.
    for _ in range(3):
        check_equal(calls)

    before = _count_compilations()
    for call in calls.values():
        call()
    # Otherwise the benchmark would time a compilation.
    assert (_count_compilations() > before) == case.first


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_computes_the_same_with_eqx_fastjit(name):
    """In a process of its own: libraries decorate functions when they are imported."""
    code = "import eqx_fastjit; eqx_fastjit.install(); "
    code += "from benchmarks.programs import PROGRAMS; import numpy as np; "
    code += f"print(np.asarray(PROGRAMS[{name!r}](5)).tolist())"
    found = json.loads(command(python=("-c", code), cwd=ROOT).stdout)
    np.testing.assert_allclose(found, PROGRAMS[name](5), rtol=1e-4)


def test_contenders_are_known_and_groups_have_cases():
    for case in CASES.values():
        assert {*case.contenders} <= CONTENDERS.keys()
    assert {case.group for case in CASES.values()} == GROUPS.keys()

    assert choose("identity, adam_19_leaves") == ["identity", "adam_19_leaves"]
    assert choose("table")[:2] == ["identity", "mlp_8"]
    assert set(choose("all")) == CASES.keys()


@pytest.mark.parametrize(
    "other", [jax.numpy.ones(3), jax.numpy.zeros(2), (jax.numpy.ones(2),) * 2, None, 1]
)
def test_contenders_that_differ_are_refused(other):
    calls = {"jit": lambda: jax.numpy.ones(2), "ours": lambda: other}
    with pytest.raises(OutputsDiffer, match="ours and jit return different results"):
        check_equal(calls)
