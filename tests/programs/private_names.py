"""Takes each private name of JAX and Equinox away in turn, and uses the library.

As if it was of another version. Each time in a process of its own, which is forked:
before JAX is used, since its threads would not survive. Prints a line for each name.
"""

import os
import re
import traceback
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

# The one private module: nothing public can stand for another version of JAX.
from eqx_fastjit import _private


# Those of the engine, of the tools and of files.
FILES = sorted(Path(_private.__file__).parent.rglob("_private.py"))
NAMES = re.findall(
    r"""["']((?:jax|jaxlib|equinox)\.[\w.]+:[\w.]+)["']""",
    "".join(file.read_text() for file in FILES),
)


def without(name):
    resolve = _private.resolve

    def resolve_others(path):
        if path == name:
            raise AttributeError(path)
        return resolve(path)

    _private.resolve = resolve_others


class Node:
    def __init__(self, x, aux):
        self.x = x
        self.aux = aux


jtu.register_pytree_node(
    Node, lambda n: ((n.x * 1,), n.aux), lambda aux, xs: Node(*xs, aux)
)


def use():
    """Calls, statics, nodes, errors, stages, transforms and caches."""
    from eqx_fastjit import filter_jit, installed

    _private.hide_from_tracebacks(__file__)  # as when this is imported
    x = jnp.ones(2)
    model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    f = filter_jit(lambda m, x, n: (m(x) * n, n))
    for n in (1, 2.0, True, 1):
        out, same = f(model, x, n)
        assert jnp.allclose(out, model(x) * n) and type(same) is type(n)
    assert f.lower(model, x, 3).compile()(model, x, 3)[1] == 3
    g = filter_jit(lambda node: node.x * node.aux)
    for aux in (2, 3, 2):
        assert g(Node(x, aux)).tolist() == [aux, aux]
        assert jax.vmap(lambda x, aux=aux: g(Node(x, aux)))(x).tolist() == [aux, aux]
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


def main():
    for name in NAMES:
        pid = os.fork()
        if pid == 0:
            try:
                without(name)
                use()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        print(name, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
