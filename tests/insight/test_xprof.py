"""A trace of `jax.profiler` shows what was compiled, and why.

Promise 36 of docs/reliability.md.
"""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import _events


@pytest.mark.parametrize("is_watched", [True, False])
def test_compilations_are_named_by_function_and_cause(tmp_path, is_watched):
    """While a tool watches, such as the doctor."""
    events = []
    if is_watched:
        _events.watch(events.append)

    @filter_jit
    def scale(x, n):
        return x * n

    with jax.profiler.trace(tmp_path):
        for n in (2, 3):
            jax.block_until_ready(scale(jnp.ones(2), n))
    _events.unwatch(events.append)
    (path,) = tmp_path.rglob("*.trace.json.gz")
    trace = json.loads(gzip.decompress(path.read_bytes()))
    names = {event.get("name") for event in trace["traceEvents"]}
    causes = {"compile scale: first call", "compile scale: n"}
    assert causes & names == (causes if is_watched else set())
