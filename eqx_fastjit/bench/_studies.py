"""Cases that need their own code: first calls, strategies, processes, a busy host."""

import functools as ft
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.monitoring
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from ._case import add, Call, case, FUNCTION, Makers, Measured, OF_FLAX
from ._contenders import each, FILTER_JITS, JITS, of_function
from ._models import mlp, mlp_size
from ._worker import environment


# --- first calls


_EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
# Of cases about first calls.
_STAGES: dict[str, Any] = {
    "modes": ("trace", "lower", "compile", "run", "total"),
    "unit": "ms",
}


class _Listener(threading.local):
    """When JAX traced, lowered and compiled, according to its monitoring events."""

    spans: list[tuple[str, float, float]] | None = None

    def hear(self, event: str, duration_secs: float, **kwargs: Any) -> None:
        if self.spans is not None and event in _EVENTS:
            now = time.perf_counter()
            self.spans.append((_EVENTS[event], now - duration_secs, now))


@ft.cache
def _listener() -> _Listener:
    listener = _Listener()
    jax.monitoring.register_event_duration_secs_listener(listener.hear)
    return listener


def _covered(spans: list[tuple[float, float]]) -> float:
    """How long at least one span was open. A trace inside of a trace counts once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def split_in_stages(call: Call) -> Measured:
    """Call, and return how long tracing, lowering, compiling and the rest took.

    **Returns:** the output, with milliseconds for `trace`, `lower`, `compile`, `run`
    (what is left: the wrapper's own work, the first run and waiting for it) and
    `total`.
    """
    listener = _listener()
    listener.spans = []
    try:
        start = time.perf_counter()
        out = jax.block_until_ready(call())
        total = time.perf_counter() - start
        spans = listener.spans
    finally:
        listener.spans = None
    times = {
        stage: 1e3 * _covered([(a, b) for name, a, b in spans if name == stage])
        for stage in _EVENTS.values()
    }
    times["run"] = 1e3 * total - sum(times.values())
    times["total"] = 1e3 * total
    return Measured(out, times)


def _first_calls(new: Callable[[], Callable[..., Any]], *args: Any) -> Makers:
    """First calls of the functions that `new` makes."""

    def of(contender: str) -> Call:
        def call() -> Any:
            return of_function(new(), *args)[contender]()()

        return lambda: split_in_stages(call)

    return {name: ft.partial(of, name) for name in FUNCTION}


@case(
    group="first_call",
    title="first call of a gradient step of an MLP of 4 linear layers, width 8",
    size=mlp_size(8, 4, batch=4),
    max_rounds=10,
    **_STAGES,
)
def first_call() -> Makers:
    def new() -> Callable[..., Any]:
        def loss(model: Any, x: Any) -> Any:
            return jnp.mean(jax.vmap(model)(x) ** 2)

        def step(model: Any, x: Any) -> Any:
            value, grads = eqx.filter_value_and_grad(loss)(model, x)
            return eqx.apply_updates(model, grads), value

        return step

    return _first_calls(new, mlp(8, 4), jnp.ones((4, 8)))


def _first_calls_under(new: Callable[[Any], Call]) -> Makers:
    """First calls of what `new(jit)` builds."""
    return each(lambda jit: lambda: split_in_stages(new(jit)))


def _new_loop(steps: int) -> Callable[..., Any]:
    def loop(w: Any, x: Any) -> Any:
        for _ in range(steps):
            x = jnp.tanh(w * x)
        return x

    return loop


def _new_scan(steps: int) -> Callable[..., Any]:
    def scan(w: Any, x: Any) -> Any:
        def step(x: Any, _: None) -> Any:
            return jnp.tanh(w * x), None

        return jax.lax.scan(step, x, length=steps)[0]

    return scan


def _first_calls_of_steps(new: Callable[[int], Any], steps: int) -> Makers:
    makers = _first_calls(ft.partial(new, steps), jnp.linspace(1, 2, 8), jnp.ones(8))
    return {name: makers[name] for name in JITS}


for _steps in (10, 100, 1000):
    for _kind, _new in (("loop", _new_loop), ("scan", _new_scan)):
        add(
            f"{_kind}_{_steps}",
            ft.partial(_first_calls_of_steps, _new, _steps),
            group="loops",
            title=f"first call of {_steps} steps "
            + ("in a Python loop" if _kind == "loop" else "under lax.scan"),
            contenders=tuple(JITS),
            size={"steps": _steps},
            computes=f"{_steps} steps",
            max_rounds=3 if _steps == 1000 else 5,
            **_STAGES,
        )


# --- what to jit


_CALLS = 101
_STRATEGIES = {
    "whole": f"jit of the function that calls another {_CALLS} times",
    "part": f"jit of the other, called {_CALLS} times from Python",
    "both": "jit of both",
    "none": "no jit",
}


def _strategy_of(jit: Any, strategy: str) -> Call:
    def affine(x: Any) -> Any:
        return x * 0.99 + 0.01

    inner = jit(affine) if strategy in ("part", "both") else affine

    def calls(x: Any) -> Any:
        for _ in range(_CALLS):
            x = inner(x)
        return x

    outer = jit(calls) if strategy in ("whole", "both") else calls
    x = jnp.ones((1000, 1000))
    return lambda: outer(x)


def _strategy(strategy: str) -> Makers:
    jits = {"eager": None} if strategy == "none" else JITS
    return each(ft.partial(_strategy_of, strategy=strategy), jits)


for _name, _title in _STRATEGIES.items():
    _shared: dict[str, Any] = {
        "group": "strategies",
        "contenders": ("eager",) if _name == "none" else tuple(JITS),
        "size": {"steps": _CALLS},
        "computes": "101 calls",
        "max_rounds": 5,
    }
    add(
        f"strategy_{_name}",
        ft.partial(_strategy, _name),
        title=f"{_title}, on a (1000, 1000) array",
        steps=_CALLS if _name in ("part", "none") else 1,
        **_shared,
    )
    if _name != "none":
        add(
            f"strategy_{_name}_first",
            ft.partial(_first_calls_under, ft.partial(_strategy_of, strategy=_name)),
            title=f"first call: {_title}",
            **_shared,
            **_STAGES,
        )


@case(
    group="eager",
    title="SELU on a million numbers",
    contenders=("eager", "jit", "eqx", "ours"),
    size={"elements": 10**6},
    max_rounds=10,
)
def selu() -> Makers:
    def selu(x: Any) -> Any:
        alpha, scale = 1.6732632, 1.0507010
        return scale * jnp.where(x > 0, x, alpha * jnp.exp(x) - alpha)

    return of_function(selu, jnp.linspace(-3, 3, 10**6))


_WALKERS, _WALK_STEPS = 4, 32


def _walk_by_loops(key: Any) -> Any:
    walks = []
    for noise in jr.normal(key, (_WALKERS, _WALK_STEPS)):
        position, walk = jnp.zeros(()), []
        for step in noise:
            position = position + step
            walk.append(position)
        walks.append(jnp.stack(walk))
    return jnp.stack(walks)


# Neither is created in each call: `scan` would trace and compile it again.
def _walk_step(position: Any, noise: Any) -> Any:
    position = position + noise
    return position, position


def _walk_of_noise(noise: Any) -> Any:
    return jax.lax.scan(_walk_step, jnp.zeros(()), noise)[1]


def _walk_by_scan(key: Any) -> Any:
    return jax.vmap(_walk_of_noise)(jr.normal(key, (_WALKERS, _WALK_STEPS)))


def _walk(walk: Callable[[Any], Any]) -> Makers:
    return of_function(walk, jr.key(0))


def _new_walk(walk: Callable[[Any], Any], jit: Any) -> Call:
    """Under a function that is not compiled yet."""
    return ft.partial(jit(lambda key: walk(key)), jr.key(0))


for _name, _fn, _how in (
    ("loops", _walk_by_loops, "nested Python loops"),
    ("scan", _walk_by_scan, "scan and vmap"),
):
    add(
        f"walk_{_name}",
        ft.partial(_walk, _fn),
        group="eager",
        title=f"Gaussian random walk of {_WALKERS} walkers, {_WALK_STEPS} steps, by "
        f"{_how}",
        contenders=("eager", "jit", "eqx", "ours"),
        size={"walkers": _WALKERS, "steps": _WALK_STEPS},
        computes="random walk",
        max_rounds=10,
    )
    add(
        f"walk_{_name}_first",
        ft.partial(_first_calls_under, ft.partial(_new_walk, _fn)),
        group="eager",
        title=f"first call: random walk by {_how}",
        contenders=tuple(JITS),
        size={"walkers": _WALKERS, "steps": _WALK_STEPS},
        computes="random walk",
        max_rounds=3,
        **_STAGES,
    )


# --- whole processes


@ft.cache
def _bytecode() -> tempfile.TemporaryDirectory[str]:
    """A folder for bytecode, which goes when this process does."""
    return tempfile.TemporaryDirectory(prefix="eqx_fastjit")


def _python(code: str) -> float:
    """What a fresh Python prints for this code."""
    # With bytecode caches, as an installed package has them: the first run of each
    # code, which proves outputs equal and is not timed, fills them.
    env = environment()
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env["PYTHONPYCACHEPREFIX"] = _bytecode().name
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return float(run.stdout)


_IMPORT = """
import time
start = time.perf_counter()
{}
print((time.perf_counter() - start) * 1e3)
"""
_IMPORTS = {
    "jit": "import jax; jax.jit",
    "eqx": "import equinox; equinox.filter_jit",
    "ours": "import eqx_fastjit; eqx_fastjit.filter_jit",
    "nnx_jit": "import flax.nnx; flax.nnx.jit",
}


def _measured(mode: str, code: str) -> Measured:
    return Measured(None, {mode: _python(code)})


@case(
    group="process",
    title="import in a fresh process, including its own imports",
    contenders=tuple(_IMPORTS),
    modes=("import",),
    unit="ms",
    max_rounds=5,
)
def import_time() -> Makers:
    def of(statement: str) -> Call:
        return ft.partial(_measured, "import", _IMPORT.format(statement))

    return each(of, _IMPORTS)


# `VmHWM` is of this process alone; `ru_maxrss` is of its parent too.
_MEMORY = """
import resource, sys
import jax
from eqx_fastjit.bench import make_case
call = make_case("mlp_32", ({contender!r},))[{contender!r}]
for _ in range(2000):
    out = call()
jax.block_until_ready(out)
try:
    status = open("/proc/self/status").read()
    kib = int(status.split("VmHWM:")[1].split()[0])
except OSError:
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    kib /= 1024 if sys.platform == "darwin" else 1
print(kib / 1024)
"""


@case(
    group="process",
    title="peak memory of a process that calls mlp_32 2,000 times",
    contenders=FUNCTION + OF_FLAX,
    size=mlp_size(32),
    modes=("peak",),
    unit="MiB",
    max_rounds=3,
)
def peak_memory() -> Makers:
    def of(contender: str) -> Call:
        return ft.partial(_measured, "peak", _MEMORY.format(contender=contender))

    return {name: ft.partial(of, name) for name in FUNCTION + OF_FLAX}


# --- a training loop whose host prepares the next batch while the device works


_STEPS = 10
_PRODUCTS = 4
_HOST_NUMBERS = 100_000


class _Net(eqx.Module):
    weight: jax.Array
    name: str = "net"


def _step(net: _Net, batch: Any) -> tuple[_Net, Any]:
    """One step, which cannot begin before the previous one has ended."""

    def product(_: int, x: Any) -> Any:
        return jnp.tanh(x @ net.weight)

    x = jax.lax.fori_loop(0, _PRODUCTS, product, net.weight + batch.mean())
    return _Net(0.5 * (net.weight + x), net.name), x[0, 0]


def _loop(step: Callable[[Any, Any], Any], state: Any) -> Measured:
    rng = np.random.default_rng(0)
    value, in_calls = None, 0.0
    start = time.perf_counter()
    for _ in range(_STEPS):
        batch = jnp.asarray(np.sort(rng.random(_HOST_NUMBERS, np.float32))[:64])
        called = time.perf_counter()
        state, value = step(state, batch)
        in_calls += time.perf_counter() - called
    jax.block_until_ready(value)
    total = time.perf_counter() - start
    return Measured(value, {"loop": total * 1e3, "in calls": in_calls * 1e3})


def _ready(step: Callable[[Any, Any], Any], state: Any) -> Call:
    _loop(step, state)  # compiles
    return lambda: _loop(step, state)


@case(
    group="pipeline",
    title=f"{_STEPS} steps, while the host prepares the batches: milliseconds "
    "until the last result is there, and of these in calls",
    contenders=("jit", "eqx", "ours"),
    size={"leaves": 2, "steps": _STEPS},
    modes=("loop", "in calls"),
    unit="ms",
)
def overlap() -> Makers:
    # The device should take some milliseconds a step, as the host does.
    n = 384 if jax.default_backend() == "cpu" else 4096
    net = _Net(jnp.eye(n) / 2)
    arrays, statics = eqx.partition(net, eqx.is_array)

    def without_statics(arrays: Any, batch: Any) -> Any:
        net, value = _step(eqx.combine(arrays, statics), batch)
        return eqx.filter(net, eqx.is_array), value

    by_hand = {"jit": lambda: _ready(jax.jit(without_statics), arrays)}
    return {**by_hand, **each(lambda jit: _ready(jit(_step), net), FILTER_JITS)}
