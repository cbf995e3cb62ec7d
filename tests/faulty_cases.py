"""Cases that a benchmark session must refuse, and one that it must accept.

Workers import them by name. Scripts with faults for `doctor` are in `planted/`.
"""

import os
import time

import jax.numpy as jnp

from eqx_fastjit.bench import Case


def _returning(value):
    return lambda: jnp.full(3, value)


def differing():
    return {"jit": lambda: _returning(1.0), "ours": lambda: _returning(2.0)}


def agreeing():
    return {"jit": lambda: _returning(1.0), "ours": lambda: _returning(1.0)}


def failing():
    def fail():
        raise ValueError("faulty\nin two lines")

    return {"jit": lambda: _returning(1.0), "ours": fail}


def dying():
    return {"jit": lambda: _returning(1.0), "ours": lambda: os._exit(3)}


def waiting():
    """Each call takes so long that the parent has ended meanwhile."""

    def call():
        time.sleep(0.5)
        return jnp.ones(3)

    return {"jit": lambda: call, "ours": lambda: call}


def make_case(makers, **options):
    """A case that is not registered."""
    return Case(
        name=makers.__name__,
        group="faulty",
        title="",
        contenders=("jit", "ours"),
        makers=makers,
        **options,
    )
