"""`eqx-fastjit --version`: the information that a bug report needs."""

import collections
import os
import platform
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import eqx_fastjit


_NEEDED = ("equinox", "jax", "jaxlib", "numpy", "jaxtyping")
# Named where they are installed: other wrappers of `jax.jit`, and what the extras add.
_OPTIONAL = (
    *("jax-cuda12-plugin", "jax-cuda13-plugin", "jax-rocm7-plugin", "libtpu"),
    *("flax", "optax", "beartype", "typeguard", "rich", "jinja2", "pyinstrument"),
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
    for name in (*_NEEDED, *_OPTIONAL):
        try:
            print(name, version(name))
        except PackageNotFoundError:
            if name in _NEEDED:
                print(name, "not installed")
    for name, value in sorted(os.environ.items()):
        if name.startswith(_SETTINGS):
            print(f"{name}={value}")
    # These are last, because they import JAX and start its backends, which may fail.
    print("engine", _attempt(lambda: eqx_fastjit.engine()), flush=True)
    print("devices", _attempt(_devices))
    return 0


def _attempt(what: Callable[[], str]) -> str:
    try:
        return what()
    except Exception as e:
        return f"unknown ({type(e).__name__}: {str(e).strip()})"


def _devices() -> str:
    import jax

    kinds = [f"{device.platform} ({device.device_kind})" for device in jax.devices()]
    return ", ".join(f"{n} x {kind}" for kind, n in collections.Counter(kinds).items())
