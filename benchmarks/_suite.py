"""What all benchmarks share: the cases of this checkout, made ready on a device."""

import functools as ft
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


Call = Callable[[], Any]

# Parameters are known to asv by their place in these lists, and kept for years: add
# names at the end. They do not depend on the commit that is installed.
CONTENDERS = {
    "ours": "ours",
    "jax.jit": "jit",
    "eqx.filter_jit": "eqx",
    "flat": "flat",
}
DEVICES = ("cpu", "gpu")

_SAMPLE_SECONDS = 10e-3  # long enough for the clock and the first call not to matter
_WARM_CALLS = 40  # our own code generation waits for some calls


def _load_bench() -> Any:
    """`eqx_fastjit.bench` of this checkout, beside whatever commit is installed.

    Were each commit timed on its own cases, its times could not be set beside those of
    others; and the first commits have no cases.
    """
    name = "eqx_fastjit.bench"
    folder = Path(__file__).parent.parent / "eqx_fastjit" / "bench"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


bench = _load_bench()


def use_device(device: str) -> None:
    """Put all arrays of this process on a device, or skip the benchmark."""
    import jax

    if device == "cpu":
        jax.config.update("jax_platforms", "cpu")
        return
    try:
        jax.config.update("jax_default_device", jax.devices(device)[0])
    except RuntimeError as absent:
        raise NotImplementedError(f"no {device} here") from absent


def calls(case: str, contenders: tuple[str, ...]) -> dict[str, Call]:
    """Calls of a case, or skip the benchmark where one of them cannot be made."""
    names = [CONTENDERS[contender] for contender in contenders]
    made = bench.make_case(case)
    for name in names:
        if name not in made:
            raise NotImplementedError(f"case {case} has no contender {name}")
    return {name: made[name] for name in names}


class Ready:
    """A warm call, and how many of it make a sample."""

    def __init__(self, call: Call):
        import jax

        self.call = call
        self._last: Any = None
        for _ in range(_WARM_CALLS):
            self._last = call()
        self.block()
        seconds = min(self._seconds() for _ in range(3))
        self.count = max(3, min(2000, int(_SAMPLE_SECONDS / seconds)))

    def _seconds(self) -> float:
        import jax

        start = time.perf_counter()
        jax.block_until_ready(self.call())
        return time.perf_counter() - start

    def timer(self) -> float:
        """A clock by which a sample lasts as long as one call."""
        return time.perf_counter() / self.count

    def dispatch(self) -> None:
        call = self.call
        for _ in range(self.count):
            self._last = call()

    def block(self) -> None:
        import jax

        jax.block_until_ready(self._last)
        self._last = None

    def blocked(self) -> None:
        import jax

        call, block = self.call, jax.block_until_ready
        for _ in range(self.count):
            block(call())


@ft.cache
def ready(case: str, contender: str, device: str) -> Ready:
    """A case made ready. asv sets up anew for each sample, hence the cache."""
    use_device(device)
    (call,) = calls(case, (contender,)).values()
    return Ready(call)
