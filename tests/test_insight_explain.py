"""What was traced, why, and what it cost: recording and reports."""

import functools
import gc
import subprocess
import sys
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _record, filter_jit
from eqx_fastjit.insight import cache_info, explain, ledger


class Model(eqx.Module):
    layers: list
    rate: float = eqx.field(static=True)


def here() -> int:
    """The line number of the caller."""
    return sys._getframe(1).f_lineno


def only(f):
    """The only explanation, and its differences as `(path, what)`."""
    (explanation,) = explain(f)
    return explanation, [(d.path, d.what) for d in explanation.differences]


def test_a_cause_is_named_by_leaf_and_line():
    @filter_jit
    def f(model, lr):
        return model.layers[1] * lr

    x = jnp.ones(3)
    f(Model([x, x], 0.1), 1)
    first = here() - 1
    f(Model([x, jnp.ones(4)], 0.1), 1)
    second = here() - 1
    explanation, differences = only(f)
    assert differences == [("model.layers[1]", "shape")]
    assert explanation.kind == "shape-churn"
    assert explanation.differences[0].old == "(3,)"
    assert explanation.differences[0].new == "(4,)"
    assert explanation.site.file == __file__
    assert explanation.site.line == second
    assert explanation.earlier_site.line == first
    assert explanation.retraced
    assert explanation.seconds >= explanation.trace + explanation.compile > 0
    text = str(explanation)
    assert f"{__file__}:{second}" in text
    assert "`model.layers[1]`: shape (3,) -> (4,)" in text
    assert "Padding keeps results only if you also pass the true length" in text
    assert "<pre>" in explanation._repr_html_()
    assert "&gt;" in explanation._repr_html_()


x = jnp.ones(3)


def made_anew():
    return lambda: 1


@pytest.mark.parametrize(
    ("old", "new", "kind", "differences"),
    [
        ((x, 1), (x, 1.0), "static-churn", [("b", "static")]),
        ((x, 0.1), (x, jnp.asarray(0.1)), "static-churn", [("b", "static")]),
        ((x, None), (x, 2), "static-churn", [("b", "static")]),
        ((x, 1), (x.astype("int32"), 1), "dtype-churn", [("a", "dtype")]),
        (
            (jnp.asarray(1.0), 1),
            (jnp.asarray(1.0, "float32"), 1),
            "weak-type",
            [("a", "weak_type")],
        ),
        ((x, [x]), (x, [x, x]), "structure-churn", [("b", "structure")]),
        ((x, [x]), (x, (x,)), "structure-churn", [("b", "structure")]),
        ((x, {"k": x}), (x, {"j": x}), "structure-churn", [("b['j']", "structure")]),
        (
            (x, Model([x], 1)),
            (x, Model([x], 2)),
            "static-churn",
            [("b.rate", "static")],
        ),
        (
            (x, made_anew()),
            (x, made_anew()),
            "fresh-function",
            [("b", "function")],
        ),
        ((x, "a" * 90 + "b"), (x, "a" * 90 + "c"), "static-churn", [("b", "object")]),
    ],
)
def test_kinds(old, new, kind, differences):
    @filter_jit
    def f(a, b):
        return a

    f(*old)
    f(*new)
    f(*new)
    explanation, found = only(f)
    assert explanation.kind == kind
    assert found[: len(differences)] == differences


def test_sharding_compiles_again_without_a_trace():
    @filter_jit
    def f(x):
        return x

    f(x)
    f(jax.device_put(x, jax.devices()[0]))
    explanation, found = only(f)
    assert found == [("x", "committed")]
    assert explanation.kind == "sharding-churn"
    assert not explanation.retraced
    assert explanation.trace == 0 < explanation.compile
    assert "compiled (not traced)" in str(explanation)
    f(jax.device_put(x, jax.devices()[1]))
    assert explain(f)[1].differences[0].new == str(jax.devices()[1])


def test_configuration():
    @filter_jit
    def f(x):
        return x

    f(x)
    with jax.default_matmul_precision("highest"):
        f(x)
    explanation, found = only(f)
    assert found == [("jax_default_matmul_precision", "config")]
    assert explanation.kind == "config-churn"


def test_nearest_earlier_signature():
    @filter_jit
    def f(a, b, c):
        return a

    f(x, 1, 1)
    f(x, 2, 2)
    f(x, 2, 3)
    assert [len(e.differences) for e in explain(f)] == [2, 1]
    assert explain(f)[1].differences[0].path == "c"


def test_cleared_caches():
    @filter_jit
    def f(x):
        return x

    f(x)
    f.clear_cache()
    f(x)
    explanation, found = only(f)
    assert explanation.kind == "cache-cleared"
    assert found == []
    assert cache_info(f).traces == 2
    assert cache_info(f).specializations == 1


def test_function_made_anew():
    for _ in range(3):
        f = filter_jit(lambda x: x + 1)
        f(x)
    explanation, _ = only(f)
    assert explanation.kind == "fresh-function"
    row = next(r for r in ledger().rows if f"{__file__}" in r.function)
    assert row.functions >= 3


def test_cache_info():
    @filter_jit
    def f(x, n):
        return x * n

    assert cache_info(f).traces == 0
    f(x, 1)
    f(x, 1)
    f(x, 2)
    info = cache_info(f)
    assert (info.traces, info.compiles, info.specializations) == (2, 2, 2)
    first, second = info.signatures
    assert first.summary == "x: float32(3,), n: 1"
    assert second.summary == "`n`: static 1 (int) -> 2 (int)"
    for signature in info.signatures:
        assert signature.traces == signature.compiles == 1
        parts = signature.trace, signature.lower, signature.compile
        assert min(parts) > 0
        assert signature.first_run >= 0
    assert "2 traces, 2 compiles, 2 specializations" in str(info)
    assert "<table>" in info._repr_html_()
    assert "&#x27;" not in str(info)
    f.lower(jnp.ones(7), 2).compile()
    assert cache_info(f).compiles == 3


def test_methods_and_callable_modules():
    class M(eqx.Module):
        w: jax.Array

        @filter_jit
        def step(self, x):
            return self.w * x

        def __call__(self, x):
            return self.w + x

    m = M(x)
    m.step(x)
    m.step(jnp.ones(1))
    assert cache_info(m.step).traces == cache_info(M.step).traces == 2
    assert explain(m.step)[0].differences[0].path == "x"
    f = filter_jit(m)
    f(x)
    f(jnp.ones(1))
    assert explain(f)[0].differences[0].path == "x"
    # `M` is local, so this class is new to the record.
    assert cache_info(f).traces == 2


def test_a_function_inside_a_function():
    @filter_jit
    def inner(x):
        return jnp.sin(x)

    @filter_jit
    def outer(x):
        return inner(x) + 1

    outer(x)
    inner_trace = inner._function.history.traces_kept[-1]
    outer_trace = outer._function.history.traces_kept[-1]
    assert inner_trace.inside == outer_trace.number
    assert inner_trace.compile == 0
    assert 0 < outer_trace.nested <= outer_trace.trace
    # Each second is counted once.
    total = cache_info(outer).seconds + cache_info(inner).seconds
    assert total == pytest.approx(outer_trace.seconds)


def test_a_function_that_is_inlined_and_then_called():
    """Its own compilation is a first call, even if it was inlined before."""

    @filter_jit
    def inner(x):
        return jnp.sin(x)

    @filter_jit
    def outer(x):
        return inner(x) + 1

    x = jnp.ones(7)
    outer(x)
    jax.jit(lambda x: inner(x) * 2)(x)
    jax.grad(lambda x: inner(x).sum())(x)
    inner(x)
    inner(jax.device_put(x, jax.devices()[1]))
    (explanation,) = explain(inner)
    assert explanation.kind == "sharding-churn"
    assert [d.what for d in explanation.differences] == ["sharding", "committed"]
    info = cache_info(inner)
    assert [s.inlined for s in info.signatures] == [1, 0, 0]
    assert "The time of inlined traces counts for the function around them." in str(
        info
    )
    assert info.seconds == pytest.approx(
        sum(s.trace + s.lower + s.compile + s.first_run for s in info.signatures)
    )
    row = next(r for r in ledger().rows if "inner" in r.function)
    causes = dict(row.causes)
    assert causes == {"first-call": 2, "inlined": 1, "sharding-churn": 1}
    assert row.seconds == pytest.approx(info.seconds)


def test_the_placement_of_numpy_arrays_is_no_difference():
    @filter_jit
    def f(x, n):
        return x * n

    f(np.ones(3, np.float32), 1)
    f(x, 2)
    _, found = only(f)
    assert found == [("n", "static")]


def test_a_failed_trace_is_no_trace():
    fail = True

    @filter_jit
    def f(x):
        if fail:
            raise ValueError("no")
        return x

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            f(x)
    assert cache_info(f).traces == 0
    fail = False
    f(x)
    assert cache_info(f).traces == 1
    assert explain(f) == ()
    assert str(explain(f)) == "never traced again"


def test_disable_jit_records_nothing():
    @filter_jit
    def f(x):
        return x + 1

    with jax.disable_jit():
        f(x)
        f(x)
    assert cache_info(f).traces == 0


def test_nothing_of_the_arguments_is_kept():
    class Static:
        def __repr__(self):
            raise AssertionError("nobody asked for that")

    @filter_jit
    def f(x, s):
        return x

    static = Static()
    array = jnp.ones(5)
    f(array, static)
    alive = weakref.ref(static), weakref.ref(array)
    assert "a test_nothing_of" in cache_info(f).signatures[0].summary
    del static, array
    f.clear_cache()
    gc.collect()
    assert alive[1]() is None
    assert alive[0]() is None
    assert cache_info(f).traces == 1


def test_an_odd_class_does_not_break_the_call():
    class Odd(eqx.Module):
        x: jax.Array

        def __getattribute__(self, name):
            if name == "x" and sys._getframe(1).f_code.co_name == "<listcomp>":
                raise RuntimeError("not for you")
            return super().__getattribute__(name)

    @filter_jit
    def f(m, n):
        return n

    f(Odd(x), 1)
    f(Odd(x), 2)
    assert cache_info(f).traces == 2


def test_records_are_bounded(monkeypatch):
    monkeypatch.setattr(_record, "_KEPT_PER_FUNCTION", 30)

    @filter_jit
    def f(n):
        return n

    for i in range(_record._KEPT_PER_FUNCTION + 5):
        f(i)
    history = f._function.history
    assert len(history.traces_kept) == _record._KEPT_PER_FUNCTION
    assert cache_info(f).traces == _record._KEPT_PER_FUNCTION + 5


@pytest.mark.parametrize("tool", [cache_info, explain])
@pytest.mark.parametrize("wrong", [lambda x: x, jax.jit(lambda x: x), 3])
def test_only_our_functions(tool, wrong):
    with pytest.raises(TypeError, match=r"wrapped by `eqx_fastjit.filter_jit`, got"):
        tool(wrong)


def test_partials_have_a_place():
    def g(x, n):
        return x

    f = filter_jit(functools.partial(g, n=2))
    f(x)
    assert f"{__file__}:{g.__code__.co_firstlineno}" in str(cache_info(f))


def test_calls_from_the_top_of_a_script(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import jax.numpy as jnp\n"
        "from eqx_fastjit import filter_jit, insight\n"
        "f = filter_jit(lambda x: x)\n"
        "f(jnp.ones(2))\n"
        "f(jnp.ones(3))\n"
        "print(insight.explain(f)); print(insight.ledger())\n"
    )
    command = [sys.executable, str(script)]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"by the call at {script}:5" in out
    assert f"<lambda> ({script}:3)" in out
    assert "1 first-call, 1 shape-churn" in out
