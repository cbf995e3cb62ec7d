"""Shared by all benchmarks: builds the cases of this checkout on a device.

asv identifies a parameter by its index in its list, for all commits. So the lists are
written out here and in the benchmarks, not read from the installed package, and new
parameters go at the end. Contenders are the first parameter, because asv's charts show
all values of the first one.
"""

import contextlib
import functools as ft
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


Call = Callable[[], Any]

# Names of the contenders in the charts, and in `eqx_fastjit.bench`.
CONTENDERS = {
    "ours": "ours",
    "jax.jit": "jit",
    "eqx.filter_jit": "eqx",
    "flat": "flat",
    "aot": "aot",
    "nnx.jit": "nnx_jit",
    "nnx.cached_partial": "nnx_cached_partial",
    "eager": "eager",
}
JITS = ("ours", "jax.jit", "eqx.filter_jit")
FUNCTION = (*JITS, "flat", "aot")
DEVICES = ("cpu", "gpu")

# `Zoo` and `ZooRatios` compare these on whole programs as people write them.
ZOO_CONTENDERS = (*JITS, "flat")
ZOO = (
    "gpt",
    "gpt_adamw",
    "encoder",
    "decode",
    "lora",
    "lora_step",
    "gru",
    "lstm",
    "online_filter",
    "resnet",
    "resnet_inference",
    "cnn",
    "vit",
    "unet",
    "mixer",
    "gan",
    "vae",
    "diffusion",
    "pinn",
    "gaussian_process",
    "particles",
    "flow",
    "neural_ode",
    "policy",
    "dqn",
    "environment",
    "ppo",
    "frozen",
    "masked_decay",
    "schedule",
    "injected_schedule",
    "multi_transform",
    "multi_steps",
    "nested_parameters",
    "configured_layers",
    "partial_activations",
    "numpy_weights",
    "numpy_batches",
    "enums",
    "statics_200",
    "ensemble",
    "experts",
)

PACKAGE = "eqx_fastjit"
_SAMPLE_SECONDS = 10e-3
# JAX blocks calls while more than 32 computations are in flight.
_IN_FLIGHT = 30
_WARM_CALLS = 40  # older commits generate code after some calls
_WARM_SECONDS = 0.5


@contextlib.contextmanager
def _skipping_what_is_not_there() -> Iterator[None]:
    """Skip a benchmark that needs what the commit or the environment lacks.

    A package that cannot be imported at all is an error, and not skipped.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            raise
        raise NotImplementedError(str(error)) from error
    except ImportError as error:
        if error.name is None or error.name.split(".")[0] != PACKAGE:
            raise
        raise NotImplementedError(str(error)) from error
    except AttributeError as error:
        if error.obj is not sys.modules.get(PACKAGE):
            raise
        raise NotImplementedError(str(error)) from error


@ft.cache
def load_bench() -> Any:
    """`eqx_fastjit.bench` of this checkout, whichever commit is installed.

    If each commit were timed on its own cases, times of different commits could not be
    compared. The first commits have none.

    **Returns:** the module. Raises `NotImplementedError`, which makes asv skip, if the
    commit lacks something that the cases need.
    """
    name = f"{PACKAGE}.bench"
    folder = Path(__file__).parent.parent / PACKAGE / "bench"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _skipping_what_is_not_there():
        spec.loader.exec_module(module)
    return module


# With `--launch-method forkserver`, this imports JAX once, before asv forks.
with contextlib.suppress(NotImplementedError):
    load_bench()


def _use(device: str, cpu_devices: int) -> None:
    """Make JAX use one kind of device in this process, or skip."""
    import jax

    # Do not reuse what another process has compiled.
    jax.config.update("jax_enable_compilation_cache", False)
    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", cpu_devices)
        return
    if cpu_devices > 1:
        raise NotImplementedError("this case is about CPU devices")
    try:
        jax.config.update("jax_default_device", jax.devices(device)[0])
    except RuntimeError as absent:
        raise NotImplementedError(f"no {device} here") from absent


def make_case(case: str, contenders: tuple[str, ...], device: str) -> dict[str, Call]:
    """Build the calls of a case on a device.

    **Arguments:**

    - `case`: one of `eqx_fastjit.bench.case_names()`.
    - `contenders`: keys of `CONTENDERS`.
    - `device`: one of `DEVICES`.

    **Returns:** a function without arguments for each contender. Raises
    `NotImplementedError`, which makes asv skip, if one of them cannot be built.
    """
    bench = load_bench()
    info = bench.case_info(case)
    for contender in contenders:
        if CONTENDERS[contender] not in bench.contenders_of(case):
            raise NotImplementedError(f"{case} has no {contender} here")
    _use(device, info.cpu_devices)
    with _skipping_what_is_not_there():
        calls = bench.make_case(case, tuple(CONTENDERS[c] for c in contenders))
    return {c: calls[CONTENDERS[c]] for c in contenders}


def prove_equal(case: str, call: Call, contender: str) -> None:
    """Compare the result of a call with that of another contender.

    **Arguments:**

    - `case`, `contender`: as for `make_case`.
    - `call`: the contender's call. The other contender is called once, which leaves
        nothing behind that this one could use.

    Raises `OutputsDiffer`.
    """
    bench = load_bench()
    rivals = [r for r in bench.contenders_of(case) if r != CONTENDERS[contender]]
    if rivals:
        bench.check_equal({contender: call, **bench.make_case(case, (rivals[0],))})


class Ready:
    """A warm call, and the number of calls in a sample.

    **Arguments:**

    - `call`: what to call.
    - `steps`: number of computations that it dispatches.
    """

    def __init__(self, call: Call, steps: int):
        self.call = call
        self._last: Any = None
        start = time.perf_counter()
        for _ in range(_WARM_CALLS):
            self._last = call()
            if time.perf_counter() - start > _WARM_SECONDS:
                break
        self.block()
        seconds = min(self._seconds() for _ in range(3))
        self.count = max(1, min(_IN_FLIGHT // steps, int(_SAMPLE_SECONDS / seconds)))

    def _seconds(self) -> float:
        import jax

        start = time.perf_counter()
        jax.block_until_ready(self.call())
        return time.perf_counter() - start

    def timer(self) -> float:
        """A clock on which a whole sample takes as long as one call."""
        return time.perf_counter() / self.count

    def dispatch(self) -> None:
        """A sample of calls, without blocking on their results."""
        call = self.call
        for _ in range(self.count):
            self._last = call()

    def block(self) -> None:
        """Block until the computations that `dispatch` started are done."""
        import jax

        jax.block_until_ready(self._last)
        self._last = None

    def blocked(self) -> None:
        """A sample of calls, blocking on each result."""
        import jax

        call, block = self.call, jax.block_until_ready
        for _ in range(self.count):
            block(call())


@ft.cache
def ready(contender: str, case: str, device: str) -> Ready:
    """A case that was compared with another contender and warmed up.

    It takes the arguments of `make_case`. Cached, because asv runs `setup` before each
    sample.
    """
    call = make_case(case, (contender,), device)[contender]
    prove_equal(case, call, contender)
    return Ready(call, load_bench().case_info(case).steps)
