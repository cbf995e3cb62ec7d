"""Types that an editor infers, of functions and tools. Checked by pyright, not run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import equinox as eqx
import jax

from eqx_fastjit import (
    BoundJit,
    Compiled,
    engine,
    fast_filter_jit,
    filter_jit,
    install,
    installed,
    JitWrapped,
    Lowered,
    Traced,
    uninstall,
)
from eqx_fastjit.insight import (
    explain,
    Explanation,
    guard,
    inspect,
    profile,
    RetraceError,
    Row,
)


Result = tuple[jax.Array, int]


@filter_jit
def plain(x: jax.Array, n: int = 2, *, k: str = "a") -> Result:
    return x, n


@filter_jit()
def with_brackets(x: jax.Array) -> jax.Array:
    return x


@filter_jit(donate="all-except-first")
def donated(x: jax.Array) -> jax.Array:
    return x


@filter_jit(donate="warn", inline=True)
def with_options(x: jax.Array) -> jax.Array:
    return x


def not_decorated(x: jax.Array) -> jax.Array:
    return x


class Model(eqx.Module):
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w * x

    @filter_jit
    def step(self, x: jax.Array, n: int) -> jax.Array:
        return self.w * x * n

    @filter_jit(donate="all-except-first")
    def donating(self, x: jax.Array) -> jax.Array:
        return self.w * x


def functions(x: jax.Array) -> None:
    assert_type(plain(x), Result)
    assert_type(plain(x, n=3, k="b"), Result)
    assert_type(with_brackets(x), jax.Array)
    assert_type(fast_filter_jit(not_decorated)(x), jax.Array)
    assert_type(filter_jit(not_decorated)(x), jax.Array)
    wrapped: JitWrapped[..., Result] = plain
    del wrapped
    plain("x")  # pyright: ignore[reportArgumentType]
    plain(x, k=1)  # pyright: ignore[reportArgumentType]


def donation(x: jax.Array) -> None:
    assert_type(donated(x), jax.Array)
    assert_type(with_options(x), jax.Array)
    assert_type(filter_jit(not_decorated, donate="all")(x), jax.Array)
    donated(x, x)  # pyright: ignore[reportCallIssue]
    filter_jit(donate="some")  # pyright: ignore[reportArgumentType]


def methods(x: jax.Array, model: Model) -> None:
    assert_type(model.step(x, 2), jax.Array)
    assert_type(Model.step(model, x, 2), jax.Array)
    assert_type(model.donating(x), jax.Array)
    assert_type(filter_jit(model)(x), jax.Array)
    bound: BoundJit[..., jax.Array] = model.step
    assert_type(bound.func.__wrapped__(model, x, 2), jax.Array)
    model.step(x)  # pyright: ignore[reportCallIssue]


def ahead_of_time(x: jax.Array, model: Model) -> None:
    traced = plain.trace(x, 3)
    lowered = traced.lower()
    compiled = lowered.compile()
    any_traced: Traced[..., Result] = traced
    any_lowered: Lowered[..., Result] = lowered
    any_compiled: Compiled[..., Result] = compiled
    del any_traced, any_lowered, any_compiled
    assert_type(compiled(x, 3), Result)
    assert_type(model.step.lower(x, 2).compile()(x, 2), jax.Array)
    # Shapes in place of arrays.
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    assert_type(plain.lower(shape, 3).compile()(x, 3), Result)
    plain.eval_shape(shape)
    plain.clear_cache()
    model.step.clear_cache()
    compiled("x")  # pyright: ignore[reportArgumentType]


def in_the_place_of_equinox() -> None:
    install()
    uninstall()
    with installed():
        assert_type(engine(), str)


# --- insight ---


@guard(max_traces=1)
def guarded(x: jax.Array) -> jax.Array:
    return with_brackets(x)


def tools(x: jax.Array) -> None:
    explanation = explain(plain)
    assert_type(explanation, Explanation)
    assert_type(explanation.seconds, float)
    assert_type(explanation.rows, tuple[Row, ...])
    assert_type(guarded(x), jax.Array)
    print(explain(verbose=True), inspect(plain, x), profile(plain, x))
    try:
        with guard(max_traces=0, warn=True):
            plain(x)
    except RetraceError:
        pass
    guard(max_traces="1")  # pyright: ignore[reportArgumentType]
