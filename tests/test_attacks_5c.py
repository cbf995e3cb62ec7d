"""What a fifth hostile reader of the C files found: each of these was once wrong."""

import pytest

from tests.processes import run_code


_COMMON = """
import faulthandler
faulthandler.enable()
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import _engine, filter_jit

native = _engine.native()
x = jnp.ones(())
"""


def _run(code, **options):
    return run_code(code, common=_COMMON, PYTHONMALLOC="debug", **options)


# --- arguments that are missing ------------------------------------------------------

_PREPARE = """
for given in (
    {},
    dict(positional=None),
    dict(positional=None, names=(), kinds=b"", defaults=()),
    dict(positional=None, names=(), kinds=b"", defaults=(), binder=None, source=5)
    | dict(function=None, table=native.Table(1), fun=None),
):
    try:
        native.Callable()._prepare(None, **given)
    except TypeError as e:
        print(e)
"""


@pytest.mark.one_engine
def test_a_callable_that_is_not_told_all_it_needs():
    out = _run(_PREPARE)
    assert out.stdout == "_prepare: arguments are missing\n" * 4, out.stderr[-4000:]
