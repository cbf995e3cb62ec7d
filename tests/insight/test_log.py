"""Each compilation as it happens: `EQX_FASTJIT_LOG=compiles`, and `jax.profiler`.

Promise 36 of docs/reliability.md.
"""

import gzip
import json

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import filter_jit
from eqx_fastjit.insight import _events
from tests.support.commands import command


PROGRAM = """
import logging
import eqx_fastjit, jax.numpy as jnp, numpy as np

@eqx_fastjit.filter_jit
def inner(x):
    return jnp.sin(x)

@eqx_fastjit.filter_jit
def step(x, n):
    return inner(x) * n

step(np.ones(4, np.float32), 1)
step(np.ones(4, np.float32), 2)
step(np.ones(3, np.float32), 2)
step(np.ones(2, np.float32), 2)
jnp.ones(3) + 1
"""


def lines(**environment):
    ended = command(python=("-c", PROGRAM), **environment)
    return [x for x in ended.stderr.splitlines() if "eqx_fastjit]" in x]


def test_a_line_for_each_compilation():
    found = lines(EQX_FASTJIT_LOG="compiles")
    assert len(found) == len(set(found)) > 4
    assert "compiled step (<string>:9) in " in found[0]
    assert found[0].endswith("called at <string>:13: first call")
    assert "compiled the same program of step (<string>:9) again in " in found[1]
    assert found[1].endswith("<string>:14: n 1, 2 [number]")
    assert "compiled step (<string>:9) again in " in found[2]
    assert found[2].endswith("<string>:15: x float32[4], float32[3]")
    assert "float32[2]" in found[3]
    for line in found[4:]:  # operations, however short they are
        assert line.endswith("called at <string>:17: outside of filter_jit")


SLOW = """
import time
import equinox as eqx, numpy as np
from eqx_fastjit.insight import _late
_late._LATE, _late._INTERVAL = 0.2, 0.01

@eqx.filter_jit
def slow(x):
    time.sleep(1)
    return x + 1

slow(np.ones(3))
"""


@pytest.mark.parametrize("tool", ["run", "doctor"])
def test_what_takes_long_is_said_while_it_does(tool, tmp_path):
    """Both by the log and by the doctor, and nothing once it has ended."""
    (tmp_path / "slow.py").write_text(SLOW)
    log = {"EQX_FASTJIT_LOG": "compiles"} if tool == "run" else {}
    ended = command(tool, "slow.py", cwd=tmp_path, **log)
    said = ended.stderr.rpartition("still compiling slow (slow.py:7)")
    assert all(said) and "slow" in said[-1]  # of what was compiled then
    assert ended.stdout == ""


def test_off_and_nonsense():
    assert lines(EQX_FASTJIT_LOG="off") == []
    ended = command(python=("-c", PROGRAM), code=1, EQX_FASTJIT_LOG="loud")
    assert "EQX_FASTJIT_LOG='loud': expected compiles, off" in ended.stderr


@pytest.mark.parametrize("is_watched", [True, False])
def test_a_trace_of_the_profiler_has_the_causes(tmp_path, is_watched):
    """Each compilation's, by function, while a tool watches, such as the doctor."""
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
