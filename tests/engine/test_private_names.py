"""With another version of JAX or Equinox, calls are right all the same.

Private names may be missing, and public ones that may move. If need be, `filter_jit` is
Equinox's own, with one warning.
"""

import sys

import equinox as eqx
import jax
import numpy as np
import pytest

from eqx_fastjit import _traced, filter_jit
from tests.support.commands import command
from tests.support.programs import run_program


# Names that only exporting or the tools use are taken away in their own tests.
@pytest.mark.one_engine
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["private", "public"])
def test_each_name_can_be_missing(kind):
    """Taken away in turn and all at once, programs compute what they did.

    Without some public names, that is by Equinox's own `filter_jit`, with one warning.
    """
    out = run_program("private_names.py", kind, timeout=550)
    outcomes = {line.split()[0]: line.split()[1:] for line in out.stdout.splitlines()}
    assert len(outcomes) >= 3
    failed = [name for name, outcome in outcomes.items() if outcome[-1] != "0"]
    assert not failed, (failed, out.stderr[-4000:])


def test_an_equinox_that_flattens_fields_by_name():
    """The order of fields is JAX's, whatever that is, in each call."""
    out = run_program("flattened_by_name.py")
    assert out.stdout.splitlines() == ["106 2 100"] * 4


# What is no more when the library is first used, and a part of the warning.
FAULTS = [
    ("from eqx_fastjit import _native; del _native.Plan", "not read as JAX"),
    ("del jax.ShapeDtypeStruct", "no attribute 'ShapeDtypeStruct'"),
    ("jax.monitoring.register_scalar_listener = lambda _: 1 / 0", "zero"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS)
def test_an_engine_that_does_not_fit_is_not_used(fault, reason):
    """There is one warning, with the versions and the reason, and Equinox's own."""
    code = f"import jax, equinox; {fault}; import eqx_fastjit as e; e.install()"
    code += "; f = e.filter_jit(lambda x: x * 2, asynchronous=False)"
    out = command(python=("-c", f"{code}; print(f(2), e.engine())"))
    assert out.stdout == "4 equinox\n"
    (line,) = [x for x in out.stderr.splitlines() if "Warning: " in x]
    assert reason in line and jax.__version__ in line and "upgrade" in line


@pytest.mark.parametrize("is_elsewhere", [True, False])
def test_traces_that_are_kept_elsewhere(is_elsewhere, monkeypatch):
    """Whether a call has callbacks is known of any JAX: whether `error_if` raises."""
    if is_elsewhere:
        monkeypatch.setattr(_traced, "equations_so_far", lambda _: None)
    else:  # JAX is not asked: `SystemExit` would pass an `except Exception`
        monkeypatch.setattr(_traced, "has_host_callbacks", sys.exit)
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, "negative"))
    for x in (np.float32(1), np.ones(3)):
        assert (f(x) == x).all()
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(-x)


def test_what_cannot_be_imported_says_why():
    """`from eqx_fastjit import ...` raises an `ImportError` with its cause."""
    code = "import jax, equinox; del jax.ShapeDtypeStruct; "
    code += "from eqx_fastjit import JitWrapped"
    out = command(python=("-c", code), code=1)
    assert "ImportError: cannot import 'JitWrapped'" in out.stderr
    assert "no attribute 'ShapeDtypeStruct'" in out.stderr
