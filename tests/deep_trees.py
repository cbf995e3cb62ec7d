"""Trees that are too deep, too wide or endless.

Run by `test_hostile.py` in a subprocess, since they may crash. Prints one line a case:
its name and outcome.
"""

import sys
import threading

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu

import eqx_fastjit


X = jnp.array(2.0)
OFTEN = 20  # until the function is warm


class Box(eqx.Module):
    content: object
    static: object = eqx.field(static=True, default=None)


def nested(depth, wrap, inside):
    for _ in range(depth):
        inside = wrap(inside)
    return inside


def in_list(x):
    return [x]


def in_tuple(x):
    return (x,)


def in_box(x, static=None):
    """Like `Box(x, static)`, but without Equinox's checks, which walk all of `x`."""
    box = object.__new__(Box)
    object.__setattr__(box, "content", x)
    object.__setattr__(box, "static", static)
    return box


def cyclic_list(f):
    x = []
    x.append(x)
    f(x)


def cyclic_dict(f):
    x = {}
    x["x"] = x
    f(x)


def cyclic_module(f):
    box = Box([X])
    for _ in range(OFTEN):
        f(box)
    box.content.append(box)
    f(box)


def module_inside_itself(f):
    box = Box(X)
    for _ in range(OFTEN):
        f(box)
    object.__setattr__(box, "content", box)
    f(box)


def lists_300(f):
    for _ in range(OFTEN):
        f(nested(300, in_list, X))


def lists_1000(f):
    f(nested(1_000, in_list, X))


def lists_100000(f):
    f([X])
    f(nested(100_000, in_list, X))


def tuples_100000(f):
    f(nested(100_000, in_tuple, X))


def modules_200(f):
    for _ in range(OFTEN):
        f(nested(200, in_box, X))


def modules_1000(f):
    f(nested(1_000, in_box, X))


def modules_100000(f):
    f(nested(100_000, in_box, X))


def statics_100000(f):
    static = nested(100_000, in_tuple, 1)
    f(in_box(X, static))


def static_lists_100000(f):
    f(in_box(X, nested(100_000, in_list, 1)))


def results_100000(jit):
    jit(lambda x: nested(100_000, in_list, x))(X)


def usable_afterwards(f):
    f([X])
    f(Box(X))


def long_statics(f):
    f(Box(X, "a" * 10**8))
    f(["a" * 10**8])
    f(["a" * 10**8 + "b"])
    f(Box(X, tuple(range(10**5))))
    f([10**100_000])


CASES = [
    cyclic_list,
    cyclic_dict,
    cyclic_module,
    module_inside_itself,
    lists_300,
    lists_1000,
    lists_100000,
    tuples_100000,
    modules_200,
    modules_1000,
    modules_100000,
    statics_100000,
    static_lists_100000,
    results_100000,
    long_statics,
    usable_afterwards,
]


def main():
    jit = eqx.filter_jit if sys.argv[1] == "equinox" else eqx_fastjit.filter_jit
    first_leaf = jit(lambda tree: jtu.tree_leaves(tree)[0])

    def run(case):
        try:
            case(jit if case is results_100000 else first_leaf)
        except Exception as e:
            print(case.__name__, type(e).__name__, flush=True)
        else:
            print(case.__name__, "fine", flush=True)

    for case in CASES:
        # Each case has a thread of its own. The recursion limit belongs to the thread,
        # and jaxlib does not always restore it.
        thread = threading.Thread(target=run, args=(case,))
        thread.start()
        thread.join()


if __name__ == "__main__":
    main()
