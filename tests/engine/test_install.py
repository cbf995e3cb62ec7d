"""`install()`, `installed()`, `uninstall()`, `engine()`: an unedited program.

It prints what it prints under Equinox. If there is no C extension, one warning says so.
"""

import inspect
import sys
import types

import equinox as eqx
import jax.numpy as jnp
import pytest

from eqx_fastjit import install, installed, JitWrapped, uninstall
from tests.support.programs import run_program


X = jnp.ones(2)
THEIRS = eqx.filter_jit


def _is_ours():
    return type(eqx.filter_jit(lambda x: x)) is JitWrapped


def test_install_and_uninstall():
    """Equinox's `filter_jit` is replaced wherever Equinox has it, and restored."""
    modules = [m for name, m in sys.modules.items() if name.startswith("equinox")]
    holders = [m for m in modules if vars(m).get("filter_jit") is THEIRS]
    assert len(holders) >= 2
    install()
    install()
    assert not [m for m in holders if m.filter_jit is THEIRS]
    assert _is_ours() and eqx.filter_jit.__name__ == "filter_jit"
    assert eqx.filter_jit(fun=len)([1, 2]) == 2  # by keyword, as Equinox takes it
    library = types.ModuleType("library")
    exec("from equinox import filter_jit", vars(library))
    assert library.filter_jit is eqx.filter_jit
    uninstall()
    uninstall()
    assert all(m.filter_jit is THEIRS for m in holders)


def test_installed_is_undone():
    """The context restores what was there, also after an exception."""
    with pytest.raises(KeyError), installed():
        assert _is_ours()
        raise KeyError
    assert eqx.filter_jit is THEIRS
    with installed():
        with installed(asynchronous=True):
            pass
        assert _is_ours()
    assert eqx.filter_jit is THEIRS
    install()
    with installed():
        pass
    assert _is_ours()


@pytest.mark.parametrize("use", [install, installed])
def test_whether_calls_block_is_a_bool(use):
    """Anything else is refused, and installs nothing."""
    with pytest.raises(TypeError, match="True or False"):
        use(asynchronous="no").__enter__()
    assert eqx.filter_jit is THEIRS


def test_functions_that_are_wrapped_are_not_affected():
    """What was wrapped before `install()` or within it stays what it is."""
    theirs = eqx.filter_jit(lambda x: x)
    with installed():
        ours = eqx.filter_jit(lambda x: x)
        assert theirs(X).tolist() == [1, 1] and type(theirs) is not JitWrapped
    assert type(ours) is JitWrapped and ours(X).tolist() == [1, 1]


def test_installed_calls_block_unless_asynchronous(waited):
    """`install()` promises what Equinox does; `asynchronous=True` returns early."""
    for options in ({}, {"asynchronous": False}, {"asynchronous": True}):
        with installed(**options):
            parameters = inspect.signature(eqx.filter_jit).parameters
            f = eqx.filter_jit(lambda x: x + 1)
        f(X)
        waited.clear()
        f(X)
        is_asynchronous = parameters["asynchronous"].default
        assert is_asynchronous is options.get("asynchronous", False)
        assert is_asynchronous is not bool(waited)


def test_a_loop_that_refills_its_batch():
    """With `install()`, a loop that writes to its batch computes what Equinox does."""
    theirs = run_program("refilled_batch.py", "equinox", 4).stdout
    assert run_program("refilled_batch.py", "install", 4).stdout == theirs


@pytest.mark.parametrize("name", ["python", "auto"])
def test_an_engine_is_chosen_by_the_environment(name):
    """`EQX_FASTJIT_ENGINE` chooses one, for the process, and `engine()` says which."""
    out = run_program("first_call.py", EQX_FASTJIT_ENGINE=name)
    assert out.stdout.split() == ["1", "native" if name == "auto" else name]


def test_an_unknown_engine():
    """Another name is one error that lists those there are."""
    out = run_program("first_call.py", check=False, EQX_FASTJIT_ENGINE="fast")
    assert out.returncode == 1
    assert "'fast'" in out.stderr and "'native'" in out.stderr


def test_jax_is_not_used_before_it_must_be():
    """Importing and wrapping initialize no device. No call imports tools."""
    assert run_program("light_import.py").stdout == "done\n"
