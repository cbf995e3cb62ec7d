"""Runs a random program, and says what each call gave, as plain data."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from tests.differential.trees import arrays, build, change, mutables, show


class Model(eqx.Module):
    """Calls a function, as a Module with an array and a static field."""

    w: jax.Array
    function: object = eqx.field(static=True)

    def __call__(self, tree, n=2):
        return self.function(tree, n)


def make_function(seen):
    """A function that notes what it sees in each trace, and returns it."""

    def function(tree, n=2):
        text = show(tree)
        seen.append(text)
        total = sum(
            jnp.sum(x.astype(jnp.float32)) * (i + n) for i, x in enumerate(arrays(tree))
        )
        return {"total": total, "text": text, "tree": tree, "n": n}

    return function


def make_callable(kind, jit, seen):
    """What the program calls."""
    function = make_function(seen)
    if kind == "function":
        return jit(function)
    if kind == "module":
        return jit(Model(jnp.ones(2), function))
    if kind == "nested":
        inner = jit(function)
        return jit(lambda tree, n=2: inner(tree, n))

    class WithMethod(eqx.Module):
        w: jax.Array

        @jit
        def method(self, tree, n=2):
            return function(tree, n)

    return lambda *args, **kwargs: WithMethod(jnp.ones(2)).method(*args, **kwargs)


def call(f, tree, spelling):
    if spelling == "keyword":
        return f(tree=tree, n=2)
    if spelling == "position":
        return f(tree, 2)
    return f(tree)


def _described(out):
    """A result as text, with the values of its arrays."""
    return [show(out), [_described_array(x) for x in arrays(out)]]


def _described_array(x):
    weak_type = getattr(x, "weak_type", False)  # none of NumPy's
    return [str(x.dtype), list(x.shape), np.asarray(x).tolist(), weak_type]


def run(program, jit):
    """For each call, its result or the type of its error, and the number of traces."""
    values = [build(description) for description in program["values"]]
    seen = []
    f = make_callable(program["callable"], jit, seen)

    outcomes = []
    for kind, i, *more in program["steps"]:
        if kind == "change":
            which, description = more
            objects = mutables(values[i])
            if objects:
                change(objects[which % len(objects)], build(description))
            continue

        spelling, is_kept = more
        value = values[i] if is_kept else build(program["values"][i])
        try:
            result = _described(call(f, value, spelling))
        except Exception as e:
            result = [type(e).__name__]
        outcomes.append([result, len(seen)])
    return outcomes


def without_jit(program):
    """The same, with functions that are called as they are."""
    return run(program, lambda f: f)


def results(outcomes):
    return [result for result, _ in outcomes]
