"""Loads what `export_vanishing.py` saved, and prints the results of each form."""

import sys

import jax.numpy as jnp

import eqx_fastjit


for name in ("module", "method", "closure"):
    for trusted in (False, True):
        f = eqx_fastjit.load(f"{sys.argv[1]}/{name}", trusted=trusted)
        print(f(jnp.arange(3.0)))
