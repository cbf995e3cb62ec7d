"""Types that an editor infers for `insight`. Checked by pyright, not run."""

from typing import assert_type

import jax

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import (
    Breakdown,
    breakdown,
    cache_info,
    CacheInfo,
    Captures,
    captures,
    compare_eager,
    Comparison,
    Difference,
    explain,
    Explanation,
    guard,
    inspect_jaxpr,
    JaxprReport,
    Ledger,
    ledger,
    LedgerRow,
    RetraceError,
    Signature,
    warmup,
    warmup_all,
)


@filter_jit
def step(x: jax.Array) -> jax.Array:
    return x


@guard(max_traces=1)
def guarded(x: jax.Array) -> jax.Array:
    return step(x)


def use(x: jax.Array) -> None:
    info = cache_info(step)
    assert_type(info, CacheInfo)
    assert_type(info.signatures, tuple[Signature, ...])
    assert_type(info.seconds, float)
    for explanation in explain(step):
        assert_type(explanation, Explanation)
        assert_type(explanation.differences, tuple[Difference, ...])
    assert_type(ledger(), Ledger)
    assert_type(ledger().rows, tuple[LedgerRow, ...])
    assert_type(guarded(x), jax.Array)
    assert_type(breakdown(step, x), Breakdown)
    assert_type(inspect_jaxpr(step, x), JaxprReport)
    assert_type(compare_eager(step, x), Comparison)
    assert_type(captures(step), Captures)
    try:
        with guard(max_traces=0, max_seconds=1.5):
            warmup(step, x)
    except RetraceError:
        pass
    warmup_all([(step, (x,)), (step, (), {"x": x})], progress=False)
    guard(max_traces="1")  # pyright: ignore[reportArgumentType]
