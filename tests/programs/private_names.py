"""Takes names of JAX and Equinox away, and uses the library.

As if JAX was of another version: each private name that the engine uses, each public
one that may move, and all at once. The argument says which: "private" or "public". Each
time in a process of its own, which is forked: before JAX is used, since its threads
would not survive.

Prints a line for each name, with the engine and the exit code. That is 0 if an unedited
program computes under `eqx-fastjit run` what it computes under Equinox; and without a
private name, if what the library promises holds.
"""

import contextlib
import importlib
import io
import os
import pkgutil
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path

import equinox as eqx
import jax
import jax.extend.core.primitives
import jax.numpy as jnp
import jax.tree_util as jtu

import eqx_fastjit


PROGRAM = str(Path(__file__).with_name("unedited.py"))
PATTERN = r"""["']((?:jax|jaxlib|equinox)\.[\w.]+:[\w.]+)["']"""
# Those that the files of the engine look up by a string.
LOOKED_UP = sorted(
    name
    for file in Path(eqx_fastjit.__file__).parent.glob("*.py")
    for name in re.findall(PATTERN, file.read_text())
)
# Without these, `filter_jit` is that of Equinox.
NEEDED = {
    "equinox:EquinoxRuntimeError",
    "equinox:Partial",
    "equinox:tree_equal",
    "jax.errors:JaxRuntimeError",
    "jax.sharding:Sharding",
    "jax.tree_util:all_leaves",
    "jax.tree_util:default_registry",
    "jax.tree_util:register_pytree_with_keys_class",
    "jax.tree_util:tree_unflatten",
    "jax:ShapeDtypeStruct",
    "jax:block_until_ready",
    "jax:effects_barrier",
}
PUBLIC = [
    *sorted(NEEDED),
    "jax.core:Tracer",
    "jax.extend.core:primitives",
    "jax.monitoring:register_event_duration_secs_listener",
    "jax.monitoring:register_event_listener",
    "jax.monitoring:register_scalar_listener",
    "jax.stages:Compiled",
    "jax.stages:Lowered",
    "jax:config",
]


def take_away(names):
    """From this library alone, as Equinox could not do without some of them."""
    resolve = pkgutil.resolve_name

    def resolve_others(path):
        if path in names:
            raise AttributeError(path)
        return resolve(path)

    pkgutil.resolve_name = resolve_others

    for name in set(names) & set(PUBLIC):
        path, attribute = name.split(":")
        _refuse(importlib.import_module(path), attribute)
        if f"{path}.{attribute}" in sys.modules:
            sys.modules[f"{path}.{attribute}"] = None  # importing it is an error


def _refuse(module, refused):
    """Have a module refuse an attribute to those who ask from this library."""
    value = module.__dict__.pop(refused)
    others = getattr(module, "__getattr__", None)

    def get(name):
        if name != refused:
            return others(name) if others else object.__getattribute__(module, name)

        # Who asks, without what asks for others.
        frame = sys._getframe(1)
        between = ("pkgutil", "importlib._bootstrap")
        while frame.f_code is get.__code__ or frame.f_globals["__name__"] in between:
            frame = frame.f_back
        if frame.f_globals["__name__"].startswith("eqx_fastjit"):
            raise AttributeError(f"module {module.__name__!r} has no {name!r}")
        return value

    module.__getattr__ = get


class Node:
    def __init__(self, x, aux):
        self.x = x
        self.aux = aux


# Its child is another array each time that it is flattened.
jtu.register_pytree_node(
    Node, lambda n: ((n.x * 1,), n.aux), lambda aux, xs: Node(*xs, aux)
)


def use():
    """Calls, statics, nodes, errors, stages, transforms and caches."""
    from eqx_fastjit import filter_jit, installed

    # Calls and statics, also ahead of time.
    x = jnp.ones(2)
    model = eqx.nn.LayerNorm(2)
    f = filter_jit(lambda m, x, n: (m(x) * n, n))
    for n in (1, 2.0, True, 1):
        out, same = f(model, x, n)
        assert out.tolist() == [0, 0] and type(same) is type(n)
    assert f.lower(model, x, 3).compile()(model, x, 3)[1] == 3

    # Nodes of the user's.
    g = filter_jit(lambda node: node.x * node.aux)
    for aux in (2, 3, 2):
        assert g(Node(x, aux)).tolist() == [aux, aux]
        assert jax.vmap(lambda x, aux=aux: g(Node(x, aux)))(x).tolist() == [aux, aux]

    # Errors, transforms, caches.
    checked = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
    checked(x)
    try:
        checked(-x)
    except eqx.EquinoxRuntimeError as e:
        assert "negative" in str(e)
    else:
        raise AssertionError
    assert filter_jit(eqx.filter_grad(lambda x: (x**2).sum()))(x).tolist() == [2, 2]
    eqx.clear_caches()

    with installed():
        assert eqx.filter_jit(lambda x: x + 1)(x).tolist() == [2, 2]


def check(names, expected):
    """Raises an exception if anything differs."""
    jax.config.update("jax_disable_most_optimizations", True)  # compiles more quickly
    take_away(names)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        from eqx_fastjit.cli import main as command

        with contextlib.redirect_stdout(io.StringIO()) as found:
            command(["run", PROGRAM])
    assert found.getvalue() == expected, found.getvalue()

    # Without a name that it needs, `filter_jit` is Equinox's, with one warning.
    engine = eqx_fastjit.engine()
    assert (engine == "equinox") != NEEDED.isdisjoint(names), engine
    about = [str(x.message) for x in warned if "eqx_fastjit" in str(x.message)]
    assert len(about) == (engine == "equinox"), about
    print(engine, end=" ", flush=True)
    if not set(names) & set(PUBLIC):
        use()


def main():
    command = [sys.executable, PROGRAM]
    run = subprocess.run(command, capture_output=True, text=True, check=True)

    private = [name for name in LOOKED_UP if name not in PUBLIC]
    for name in private if sys.argv[1] == "private" else [*PUBLIC, "public", "all"]:
        names = {"public": PUBLIC, "all": LOOKED_UP + PUBLIC}.get(name, [name])
        print(name, end=" ", flush=True)

        pid = os.fork()
        if pid == 0:
            try:
                check(names, run.stdout)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
