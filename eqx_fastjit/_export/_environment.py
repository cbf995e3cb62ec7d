"""Whether native code may run here: compares this machine with what it is for."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import equinox as eqx
import jax


def versions() -> dict[str, str]:
    """Of everything that has a part in a file."""
    from eqx_fastjit import __version__

    return {
        "eqx_fastjit": __version__,
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "equinox": eqx.__version__,
    }


def environment(devices: Sequence[Any]) -> dict[str, Any]:
    """What native code for these devices depends on."""
    device = devices[0]
    return {
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "platform": device.platform,
        "device": device.device_kind,
        "runtime": device.client.platform_version,
        "processor": _processor() if device.platform == "cpu" else "",
    }


def difference(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Why native code does not fit; `None` if it does."""
    for name, value in now.items():
        if (was := then.get(name)) != value:
            return f"it was compiled for {name} {was!r}, and this is {value!r}"
    return None


def _processor() -> str:
    """The kind of processor: native code may use all of its instructions."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [x for x in file if x.startswith(("flags", "Features"))]
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    flags = " ".join(sorted(lines[0].split())) if lines else ""
    return f"{platform.machine()} {hashlib.sha256(flags.encode()).hexdigest()[:16]}"
