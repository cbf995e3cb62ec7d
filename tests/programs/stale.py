"""Values that change after a trace has read them; the calls say which ones are seen."""

import equinox as eqx
import jax.numpy as jnp


class Config:
    rate = 1.0

    def __init__(self):
        self.size = 3
        self.traces = 0

    def scaled(self, x):
        return x * self.times()

    def times(self):
        return self.size


SCALE, UNUSED, LATE = 1.0, 1.0, 1.0
rate, size = 1.0, 1.0  # only attributes and parameters of these names are read
table = {"rate": 1.0, "deep": {"x": 1}, "traces": 0}
config, passed, bound = Config(), Config(), Config()


@eqx.filter_jit
def step(x, given):
    def count():
        given.traces += 1

    table["traces"] += 1
    count()
    assert given.traces
    x = x * SCALE * table["rate"] * config.rate * config.size * given.size
    return (lambda rate, x: x + rate)(table["deep"]["x"], x)


@eqx.filter_jit
def late(x):
    return x * LATE


def enclosed():
    factor = 1.0

    def helper(x):
        return x * factor

    again = eqx.filter_jit(lambda x: helper(x))
    for _ in range(3):
        again(jnp.ones(2))
        factor *= 0.5


def made_again():
    for factor in (1.0, 2.0):
        eqx.filter_jit(lambda x, factor=factor: x * factor)(jnp.ones(2))


# Traces that read the first values.
two, three = jnp.ones(2), jnp.ones(3)
step(two, passed)
step(two, passed)
late(two)

SCALE, table["deep"]["x"], Config.rate, UNUSED, LATE = 5.0, 2, 2.0, 2.0, 2.0
rate, size = 2.0, 2.0

step(two, passed)  # with the old values
late(three)  # traced again, with the new value; the old trace is not called again
late(three)

passed.size = config.size = 9
step(two, passed)

enclosed()
made_again()

method = eqx.filter_jit(bound.scaled)
method(two)
bound.size = 10
method(two)
