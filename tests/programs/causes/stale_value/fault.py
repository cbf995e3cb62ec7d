"""A global that a trace has read changes: later calls use the old value."""

import equinox as eqx
import numpy as np


SCALE = 0.5


@eqx.filter_jit
def scaled(x):
    return x * SCALE


x = np.ones(3, np.float32)
for _ in range(3):
    print(float(scaled(x).sum()))  # finding
    SCALE = SCALE / 2
