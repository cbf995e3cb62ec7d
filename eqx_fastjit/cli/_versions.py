"""`eqx-fastjit --version`: the information that a bug report needs."""

import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import eqx_fastjit


_NEEDED = ("equinox", "jax", "jaxlib", "numpy", "jaxtyping")
# Named where they are installed: other wrappers of `jax.jit`, and what the extras add.
_OPTIONAL = (
    "jax-cuda12-plugin",
    "jax-cuda13-plugin",
    "jax-rocm7-plugin",
    "libtpu",
    "flax",
    "optax",
    "beartype",
    "typeguard",
    "rich",
    "pyinstrument",
)
# Settings that change what is traced, how, or where it runs.
_SETTINGS = ("EQX_", "JAX_", "JAXTYPING_", "XLA_FLAGS")


def print_versions() -> int:
    """Print versions, the engine, the devices and the settings; returns 0.

    Anything that fails is printed as unknown, because bug reports are needed most when
    something is broken.
    """
    print("eqx_fastjit", eqx_fastjit.__version__)
    print("python", platform.python_version(), platform.python_implementation())
    print("platform", platform.platform())
    for name in _NEEDED:
        print(name, _version(name) or "not installed")
    for name in _OPTIONAL:
        if found := _version(name):
            print(name, found)
    for name, value in sorted(os.environ.items()):
        if name.startswith(_SETTINGS):
            print(f"{name}={value}")
    # These are last, because they import JAX and start its backends, which may fail.
    print("engine", _attempt(lambda: eqx_fastjit.engine()), flush=True)
    print("devices", _attempt(_devices))
    return 0


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _attempt(what: Callable[[], str]) -> str:
    try:
        return what()
    except Exception as e:
        reason = str(e).strip()
        return f"unknown ({type(e).__name__}{': ' * bool(reason)}{reason})"


def _devices() -> str:
    import collections

    import jax

    counts = collections.Counter(
        f"{device.platform} ({device.device_kind})" for device in jax.devices()
    )
    return ", ".join(f"{n} x {kind}" for kind, n in counts.items())
