"""The functions that `test_export.py` exports, and `check`, for a fresh process.

They are in a module of their own because an exported file may import from it.
"""

import dataclasses
import enum
import functools as ft
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import eqx_fastjit
from tests.support.same import assert_same


# Functions append their names here when their Python code runs: `check` asserts that
# those of `FUNCTIONS` do not.
ran: list[str] = []


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


@dataclasses.dataclass(frozen=True)
class Config:
    scale: float
    names: tuple[str, ...] = ("a",)


class Pair(NamedTuple):
    left: Any
    right: Any


@jtu.register_pytree_node_class
class Node:
    """A registered pytree class with static data."""

    def __init__(self, value, tag):
        self.value = value
        self.tag = tag

    def tree_flatten(self):
        return (self.value,), self.tag

    @classmethod
    def tree_unflatten(cls, tag, children):
        return cls(children[0], tag)


@ft.partial(jtu.register_dataclass, data_fields=["value"], meta_fields=["n"])
@dataclasses.dataclass
class Data:
    value: Any
    n: int


class Metres(float):
    """A number of another type, with the `__eq__` of `float`."""


class Layer(eqx.Module):
    weight: jax.Array
    config: Config = eqx.field(static=True)
    mode: Mode = eqx.field(static=True)
    scale: float
    activation: Any

    def __call__(self, x):
        return self.scale * self.config.scale * self.activation(x @ self.weight)


class Stranger(eqx.Module):
    """A Module of another name than its own."""

    x: jax.Array


Stranger.__qualname__ = "Missing"


class Static(eqx.Module):
    x: jax.Array = eqx.field(static=True)


def layer():
    activation = ft.partial(jax.nn.leaky_relu, negative_slope=0.1)
    return Layer(jnp.eye(3), Config(2.0), Mode.SLOW, 0.5, activation)


def x():
    return jnp.arange(6.0).reshape(2, 3)


STATICS = (1.5, None, True, -0.0, b"\0", 1 + 2j, Mode.FAST, Config(1.0), "ü\n", 2**70)


def statics(layer, x, n=2, *, name="x", act=lambda x: x):
    ran.append("statics")
    out = {"layer": layer, "pair": Pair(layer(x), (n, name)), "node": Node(x, "tag")}
    types = [jnp.float32, np.dtype("int8"), jax.nn.relu, np.dtype("int16")]
    return out, [*STATICS, ..., *types]


def keys(key, x):
    ran.append("keys")
    key, other = jr.split(key)
    return key, x + jr.normal(other, x.shape), jr.split(key, 3)


def with_state(model, x, state):
    ran.append("with_state")
    axes = {"axis_name": "batch", "in_axes": (0, None), "out_axes": (0, None)}
    return jax.vmap(model, **axes)(x, state)


def _state_arguments():
    model, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="ema")
    return model, x(), state


def mlp(model, x):
    ran.append("mlp")
    return jax.vmap(model)(x)


def add(x, *more, scale=1.0, **named):
    ran.append("add")
    total = sum(more, x)
    return scale * sum(named.values(), total)


def weak(x):
    """Results of a weak type, one of which is an argument."""
    ran.append("weak")
    return 2.0 * jnp.asarray(1.0), x


_TABLE = jr.normal(jr.key(5), (30, 30))


def closure(x):
    """Closes over an array."""
    ran.append("closure")
    return x @ _TABLE[:3] + _TABLE.sum()


def linalg(x):
    """Uses LAPACK, which JAX does not load in a process that lowers nothing."""
    ran.append("linalg")
    return jnp.linalg.qr(x.T @ x + jnp.eye(3))[1], jnp.linalg.cholesky(jnp.eye(3))


def checked(x):
    """A check, which is exported under `EQX_ON_ERROR=nan`."""
    ran.append("checked")
    return eqx.error_if(x, x[0, 0] > 10, "large")


def neural_ode(mlp, start):
    """Its solver has checks of its own."""
    import diffrax

    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: mlp(y)),
        diffrax.Tsit5(),
        t0=0.0,
        t1=1.0,
        dt0=0.1,
        y0=start,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-6),
    )
    return solution.ys


def neural_ode_arguments():
    return eqx.nn.MLP(2, 2, 4, 1, key=jr.key(0)), jnp.ones(2)


class Tests(NamedTuple):
    function: Any
    arguments: Any
    options: dict[str, Any] = {}  # noqa: RUF012


FUNCTIONS = {
    # The first: JAX loads LAPACK for others as well.
    "linalg": Tests(linalg, lambda: (x(),)),
    "statics": Tests(statics, lambda: (layer(), x())),
    "keys": Tests(keys, lambda: (jr.key(3), x())),
    "state": Tests(with_state, _state_arguments),
    "mlp": Tests(mlp, lambda: (eqx.nn.MLP(3, 2, 4, 1, key=jr.key(0)), x())),
    "numpy": Tests(add, lambda: (np.ones(3, np.float64), np.float32(2))),
    "weak": Tests(weak, lambda: (x(),)),
    "closure": Tests(closure, lambda: (x(),)),
    "donated": Tests(statics, lambda: (layer(), x()), {"donate": "all-except-first"}),
}


def mesh():
    return jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))


def sharded_functions():
    """The functions that need eight devices."""
    rows, whole = NamedSharding(mesh(), P("d")), NamedSharding(mesh(), P())

    def batch():
        return jnp.arange(32.0).reshape(8, 4)

    # Their arguments are on no mesh, and JAX has scalars on all devices of any.
    def constrained(x, scale):
        return jax.lax.with_sharding_constraint(x * scale, rows)

    def mapped(x, scale):
        specs = {"in_specs": (P("d"), P()), "out_specs": P("d")}
        return jax.shard_map(jnp.multiply, mesh=mesh(), **specs)(x, scale)

    return {
        "committed": Tests(add, lambda: (jax.device_put(batch(), rows), batch()[:1])),
        "given": Tests(
            add,
            lambda: (batch(), batch()),
            {"in_shardings": (rows, whole), "out_shardings": whole},
        ),
        "out": Tests(
            lambda x: {"a": x + 1, "b": (x, 2)},
            lambda: (jax.device_put(batch(), whole),),
            {"out_shardings": {"a": rows, "b": whole}, "donate": "all"},
        ),
        "constrained": Tests(constrained, lambda: (batch(), jnp.float32(2))),
        "mapped": Tests(mapped, lambda: (batch(), jnp.float32(2))),
    }


def filter_jit(test):
    return eqx_fastjit.filter_jit(test.function, **test.options)


def check(folder, functions, trusted):
    """Load each file of a folder, and compare its results with the function's."""
    for name, test in functions.items():
        path = Path(folder, f"{name}.fastjit")
        loaded = eqx_fastjit.load(path, allow=("tests",), trusted=trusted)
        ran.clear()
        results = [loaded(*test.arguments()) for _ in range(3)]
        arguments = test.arguments()
        results.append(loaded(*arguments))
        assert not ran, ran

        original_arguments = test.arguments()
        want = filter_jit(test)(*original_arguments)
        assert _deleted(arguments) == _deleted(original_arguments)
        for got in results:
            # The results of `jax.export.Exported.call` are always committed.
            assert_same(got, want, committed=trusted, rtol=1e-5)
        print(f"{name}: same")


def _deleted(arguments):
    """Whether each array was donated."""
    leaves = jtu.tree_leaves(arguments)
    return [x.is_deleted() for x in leaves if isinstance(x, jax.Array)]
