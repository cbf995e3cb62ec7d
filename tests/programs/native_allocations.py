"""Lets each allocation of a call fail in turn: a `MemoryError`, or the right result."""

import _testcapi
import warnings

import equinox as eqx
import jax
import jax.numpy as jnp

from eqx_fastjit import filter_jit
from tests.support.modules import Holder, Node


warnings.simplefilter("ignore")
X = jnp.ones(2)
MODEL = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
TREES = {
    "array": lambda: X,
    "containers": lambda: [X, (1, 2.5, "a"), {"k": X, "l": None}],
    "Module": lambda: MODEL,
    "static": lambda: Holder(X, [1, {"a": (2, {3})}]),
    "state": lambda: Holder(X, bytearray(b"state")),
    "node": lambda: Node([X, 1], ("aux", 2)),
    "many": lambda: [X] * 70,
}
n_failures = 0


def attempt(f, tree, start):
    """A call of which the allocation with this number fails."""
    global n_failures
    _testcapi.set_nomemory(start, start + 1)
    try:
        return f(tree, 2)
    except MemoryError:
        n_failures += 1
        return None
    except Exception as e:
        # JAX, too, may turn it into an error of its own.
        assert "memory" in str(e).lower() or isinstance(e, SystemError), repr(e)
        return None
    finally:
        _testcapi.remove_mem_hooks()


def main():
    for name, make in TREES.items():
        f = filter_jit(lambda tree, n: (tree, n, X * n))
        tree, equal = make(), make()
        right = f(tree, 2)
        for start in range(60):
            for argument in (tree, equal):
                out = attempt(f, argument, start)
                if out is not None:
                    assert out[1] == 2 and out[2].tolist() == [2, 2], (name, start)
        out = f(tree, 2)
        assert jax.tree.structure(out) == jax.tree.structure(right)
    assert n_failures > 50, n_failures
    print("done")


if __name__ == "__main__":
    main()
