"""Types that an editor infers for `insight`. Checked by pyright, not run."""

from typing import assert_type

import jax

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import (
    explain,
    Explanation,
    guard,
    inspect,
    profile,
    RetraceError,
    Row,
)


@filter_jit
def step(x: jax.Array) -> jax.Array:
    return x


@guard(max_traces=1)
def guarded(x: jax.Array) -> jax.Array:
    return step(x)


def use(x: jax.Array) -> None:
    explanation = explain(step)
    assert_type(explanation, Explanation)
    assert_type(explanation.seconds, float)
    assert_type(explanation.rows, tuple[Row, ...])
    assert_type(guarded(x), jax.Array)
    print(explain(verbose=True), inspect(step, x), profile(step, x))
    try:
        with guard(max_traces=0, warn=True):
            step(x)
    except RetraceError:
        pass
    guard(max_traces="1")  # pyright: ignore[reportArgumentType]
