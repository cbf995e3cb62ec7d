"""Every case can be built, and its contenders give equal results."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

from eqx_fastjit import _record
from eqx_fastjit.bench import (
    Case,
    case_info,
    case_names,
    check_equal,
    CONTENDERS,
    contenders_of,
    make_case,
    measure,
    Measured,
    OutputsDiffer,
)
from eqx_fastjit.bench._contenders import is_traced
from eqx_fastjit.bench._timing import output_arrays, same_arrays
from tests.bench_entries import arguments_of


pytestmark = pytest.mark.one_engine


@pytest.fixture(autouse=True)
def as_a_user_has_it():
    # Optax's adam needs these promotions.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# The other cases differ from one of these only in a number, and would take minutes.
_QUICK = (
    "identity",
    "mlp_8",
    "mlp_8_1_layers",
    "batch_4",
    "adam_19_leaves",
    "adam_19_leaves_donated",
    "recurrent",
    "convolutional",
    "transformer",
    "pipeline",
    "overlap",
    "method",
    "callable_model",
    "error_if",
    "static_arguments",
    "statics_1",
    "numpy_inputs",
    "typed_key",
    "keywords",
    "wrap_anew",
    "sharded",
    "named_in_loop",
    "first_call",
    "loop_10",
    "scan_10",
    "strategy_whole",
    "strategy_part",
    "strategy_both",
    "strategy_none",
    "strategy_both_first",
    "selu",
    "walk_loops",
    "walk_scan",
    "walk_scan_first",
)


# These compile or run so long that only two contenders are compared.
_TWO = {
    "mlp_8_1_layers": ("flat", "ours"),
    "batch_4": ("flat", "ours"),
    "recurrent": ("flat", "ours"),
    "convolutional": ("flat", "ours"),
    "transformer": ("jit", "ours"),
    "pipeline": ("jit", "ours"),
    "overlap": ("eqx", "ours"),
    "first_call": ("aot", "ours"),
    "walk_loops": ("eager", "ours"),
    "walk_scan": ("eager", "ours"),
}


# All that is known of each case, except of the zoo: fields of `Case` that are not the
# default, and `output`, the sum of the absolute values of what a call returns. A case
# that changes needs a new name, because results of different versions are compared by
# name; only its title may change.
_KNOWN = json.loads(Path(__file__).with_name("bench_cases.json").read_text())


def _fields(case):
    default = {f.name: f.default for f in dataclasses.fields(Case)}
    found = {k: v for k, v in vars(case).items() if v != default[k]}
    del found["name"], found["makers"]
    return found


def test_cases_are_what_they_were():
    names = [n for n in case_names() if case_info(n).group != "zoo"]
    assert names == list(_KNOWN)
    for name in names:
        found = json.loads(json.dumps(_fields(case_info(name))))
        known = {k: v for k, v in _KNOWN[name].items() if k != "output"}
        assert {"size": {}, **known} == found, name
    assert {n for n in _KNOWN if "output" in _KNOWN[n]} == set(_QUICK)


@pytest.mark.parametrize("name", _QUICK)
def test_contenders_agree(name):
    contenders = _TWO.get(name, contenders_of(name))
    calls = make_case(name, contenders)
    assert tuple(calls) == contenders
    outputs = [output_arrays(call) for call in calls.values()]
    assert all(same_arrays(outputs[0], output) for output in outputs)
    total = sum(abs(x.astype(float)).sum() for x in outputs[0])
    assert total == pytest.approx(_KNOWN[name]["output"], rel=1e-3)
    if name.startswith("adam"):
        check_equal(calls)  # also with the state that the first calls returned


@pytest.mark.parametrize(
    ("name", "traces"), [("named_in_loop", 1), ("lambda_in_loop", 20)]
)
def test_what_is_traced_in_a_loop(name, traces):
    (call,) = make_case(name, ("ours",)).values()
    call()
    _record.traces.clear()
    call()
    call()
    # A named function was traced by the first call.
    assert len(_record.traces) == 2 * traces * (traces > 1)


def test_every_family_is_tried():
    families = {getattr(m, "func", m) for m in map(_makers, _QUICK)}
    tried_elsewhere = {"import_time", "peak_memory"}
    tried_elsewhere |= {n for n in case_names() if case_info(n).group == "zoo"}
    rest = set(case_names()) - set(_QUICK) - tried_elsewhere
    assert all(getattr(_makers(n), "func", _makers(n)) in families for n in rest)


def _makers(name):
    return case_info(name).makers


def test_what_is_known_before_a_case_is_built():
    for name in case_names():
        case = case_info(name)
        assert set(contenders_of(name)) <= set(case.contenders)
        assert case.name == name and case.group and case.title
        assert set(case.contenders) <= set(CONTENDERS)
    issue = [f"mlp_{2**p}" for p in range(3, 11)]
    issue += [f"mlp_{2**p}_{n}_layers" for p in range(3, 11) for n in (1, 16, 100)]
    issue += [f"batch_{n}" for n in (1, 4096)] + ["statics_1", "statics_1000"]
    issue += [f"{kind}_{n}" for kind in ("loop", "scan") for n in (10, 100, 1000)]
    assert set(issue) <= set(case_names())


@pytest.mark.parametrize("layers", [1, 3, 16])
def test_size_is_that_of_the_model(layers):
    from eqx_fastjit.bench import _models

    model, size = _models.mlp(4, layers), _models.mlp_size(4, layers)
    assert jtu.tree_structure(model).num_nodes == size["nodes"]
    assert len([x for x in jtu.tree_leaves(model) if hasattr(x, "dtype")]) == (
        size["leaves"] - 1
    )


# Number of arrays in the arguments, and of elements in them. A case that changes needs
# a new name, because results of different versions are compared by name.
_ARGUMENTS = {
    "identity": (1, 1),
    "mlp_8": (7, 224),
    "mlp_8_1_layers": (3, 80),
    "batch_4": (7, 3296),
    "adam_19_leaves": (20, 681),
    "recurrent": (5, 2112),
    "convolutional": (7, 2602),
    "transformer": (13, 8928),
    "numpy_inputs": (7, 3200),
    "typed_key": (2, 4),
    "sharded": (7, 5216),
    "selu": (1, 10**6),
    "walk_scan": (1, 1),
}


@pytest.mark.parametrize("name", _ARGUMENTS)
def test_a_case_is_what_it_was_and_what_it_says(name):
    case = case_info(name)
    arguments = arguments_of(case.makers)
    arrays = [x for x in jtu.tree_leaves(arguments) if is_traced(x)]
    assert (len(arrays), sum(x.size for x in arrays)) == _ARGUMENTS[name]
    assert case.size.get("leaves", len(arrays)) == len(arrays)
    model, x = arguments[0], arguments[-1]
    if name.startswith("adam"):
        x, (model, _) = arguments
    if "batch" in case.size:
        assert len(x) == case.size["batch"]
    nodes = jtu.tree_structure(model).num_nodes
    assert case.size.get("nodes", nodes) == nodes


def test_first_call_is_split_into_stages():
    call = make_case("loop_10", ("ours",))["ours"]
    measured = call()
    assert isinstance(measured, Measured)
    times = dict(measured.times)
    # The durations are tested in tests/test_bench_timing.py.
    assert list(times) == ["trace", "lower", "compile", "run", "total"]
    assert all(times.values())


def test_nested_spans_count_once():
    from eqx_fastjit.bench._studies import _covered

    assert _covered([(1.0, 2.0), (0.0, 3.0), (4.0, 5.0), (4.5, 6.0)]) == 5.0


def test_outputs_that_differ_are_not_timed():
    list(measure({"a": lambda: 1.0, "b": lambda: 1.0}, 1))
    different = {"a": lambda: jnp.ones(2), "b": lambda: jnp.zeros(2)}
    with pytest.raises(OutputsDiffer, match="b and a return different results"):
        list(measure(different, 1))
    # Dtypes are compared, too.
    with pytest.raises(OutputsDiffer, match="b and a return different results"):
        check_equal({"a": lambda: jnp.ones(2), "b": lambda: jnp.ones(2, int)})
