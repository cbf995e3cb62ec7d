"""Shapes, dtypes and shardings as data."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from eqx_fastjit._stages import array_type

from ._format import ExportFileError
from ._tree import ExportError


def describe_array(x: Any) -> dict[str, Any]:
    """The description of an array. Sizes may be symbolic."""
    return {
        "shape": [d if type(d) is int else _size(d) for d in x.shape],
        "dtype": str(array_type(x)[1]),
        "weak_type": bool(getattr(x, "weak_type", False)),
    }


def _size(d: Any) -> int | str:
    try:
        return int(d)
    except Exception:  # a symbolic size; JAX has an exception of its own for it
        return str(d)


def is_key(dtype: str) -> bool:
    """Whether a dtype is that of typed keys, such as `key<fry>`."""
    return dtype.startswith("key<")


def show_array(x: Mapping[str, Any]) -> str:
    """`float32[8,4]`."""
    return f"{x['dtype']}[{','.join(map(str, x['shape']))}]"


def matches(then: Mapping[str, Any], now: Any) -> bool:
    """Whether an array is like the one described. Symbolic sizes are left to JAX."""
    return (
        then["dtype"] == str(array_type(now)[1])
        and len(then["shape"]) == len(now.shape)
        and all(
            type(a) is str or a == b
            for a, b in zip(then["shape"], now.shape, strict=True)
        )
    )


def shape_and_dtype(x: Mapping[str, Any]) -> tuple[tuple[int, ...], Any]:
    """Those of an array that was described."""
    shape, name = tuple(map(int, x["shape"])), x["dtype"]
    if is_key(name):
        try:
            return shape, jax.random.key(0, impl=KEY_IMPLS[name]).dtype
        except (KeyError, ValueError):
            raise ExportFileError(f"keys of type {name} are unknown here") from None
    try:
        return shape, jax.numpy.dtype(name)
    except TypeError:
        raise ExportFileError(f"{name!r} is not a dtype") from None


# By their names in a dtype.
KEY_IMPLS = {"key<fry>": "threefry2x32", "key<rbg>": "rbg", "key<urbg>": "unsafe_rbg"}


# --- shardings ------------------------------------------------------------------------


def placement(x: Any) -> Any:
    """The sharding that an array was given; `None` if it may be anywhere."""
    sharding = getattr(x, "sharding", None)
    is_given = isinstance(x, jax.ShapeDtypeStruct) or getattr(x, "committed", False)
    is_several = is_given and sharding is not None and len(sharding.device_set) > 1
    return sharding if is_several else None


def describe_sharding(x: Any) -> dict[str, Any] | None:
    """A sharding as data; `None` for one that cannot be written down."""
    if isinstance(x, jax.sharding.SingleDeviceSharding):
        (device,) = x.device_set
        return {"device": device.id, "memory": x.memory_kind}
    if isinstance(x, jax.sharding.NamedSharding) and isinstance(
        x.mesh, jax.sharding.Mesh
    ):
        mesh = x.mesh
        return {
            "axes": list(mesh.axis_names),
            "sizes": list(mesh.devices.shape),
            "devices": [d.id for d in mesh.devices.flat],
            "types": [t.name for t in mesh.axis_types],
            "spec": [list(e) if isinstance(e, tuple) else e for e in x.spec],
            "memory": x.memory_kind,
        }
    return None


def sharding_to_save(x: Any, what: str) -> dict[str, Any]:
    """The same, or an `ExportError` with `what` has it."""
    if (out := describe_sharding(x)) is None:
        raise ExportError(
            f"{what} a {type(x).__name__}, which cannot be saved. Use a "
            "`jax.sharding.NamedSharding`."
        )
    return out


def sharding_of(x: Mapping[str, Any], devices: Mapping[int, Any]) -> Any:
    """The sharding again. Raises `ExportFileError` if a device is missing."""
    try:
        if "device" in x:
            return jax.sharding.SingleDeviceSharding(
                devices[x["device"]], memory_kind=x["memory"]
            )
        grid = np.array([devices[i] for i in x["devices"]], dtype=object)
    except KeyError as e:
        raise ExportFileError(
            f"it was exported for device {e}, and there are {len(devices)} devices"
        ) from None
    mesh = jax.sharding.Mesh(
        grid.reshape(x["sizes"]),
        tuple(x["axes"]),
        axis_types=tuple(jax.sharding.AxisType[t] for t in x["types"]),
    )
    spec = [tuple(e) if isinstance(e, list) else e for e in x["spec"]]
    return jax.sharding.NamedSharding(
        mesh, jax.sharding.PartitionSpec(*spec), memory_kind=x["memory"]
    )
