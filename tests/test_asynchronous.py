"""When calls block: as Equinox's do under `install()`, as `jax.jit`'s do otherwise."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import pytest

import eqx_fastjit
from eqx_fastjit import filter_jit
from tests.programs.refilled import loop


PROGRAMS = Path(__file__).parent / "programs"
COMMAND = [sys.executable, "-m", "eqx_fastjit.cli"]


def run(*command):
    """The lines that a program prints."""
    out = subprocess.run(
        list(map(str, command)),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert out.returncode == 0, out.stderr
    return out.stdout.splitlines()


def slow(x):
    return jax.lax.fori_loop(0, 60, lambda _, y: jnp.tanh(y @ y), x)


def _write(ref, x):
    ref[...] = slow(x)


class Slow(eqx.Module):
    scale: jax.Array

    def __call__(self, x):
        return slow(self.scale * x)

    @eqx_fastjit.filter_jit
    def returns_immediately(self, x):
        return slow(self.scale * x)

    @eqx_fastjit.filter_jit(asynchronous=False)
    def blocks(self, x):
        return slow(self.scale * x)


@pytest.fixture(scope="module")
def large():
    return jnp.ones((400, 400)) / 400


def is_done(call, *args):
    """Whether the result of a second call is ready when it returns."""
    jax.block_until_ready(call(*args))
    result = call(*args)
    done = all(x.is_ready() for x in jtu.tree_leaves(result))
    jax.block_until_ready(result)
    return done


# --- a batch that is refilled in place ------------------------------------------------


@pytest.mark.one_engine
def test_run_prints_what_python_prints_though_the_batch_is_refilled():
    program = PROGRAMS / "refilled" / "loop.py"
    spellings = ["numpy", "asarray", "array", "device_put"]
    plain = run(sys.executable, program, *spellings)
    assert [line.split()[0] for line in plain] == spellings
    assert run(*COMMAND, "run", program, *spellings) == plain


@pytest.mark.parametrize("spelling", ["numpy", "copy"])
def test_the_decorator_with_the_advice_of_the_docs_has_the_losses_of_equinox(spelling):
    """Pass the NumPy array itself, or a copy of it."""
    with jax.numpy_dtype_promotion("standard"):  # for optax
        theirs = loop.train(eqx.filter_jit(loop.step), spelling, steps=8)
        ours = loop.train(filter_jit(loop.step), spelling, steps=8)
    assert ours == pytest.approx(theirs, rel=1e-3)


# --- which calls block ----------------------------------------------------------------


BLOCKING = {
    "function": lambda: filter_jit(slow, asynchronous=False),
    "decorator": lambda: filter_jit(asynchronous=False)(slow),
    "module": lambda: filter_jit(Slow(jnp.ones(())), asynchronous=False),
    "method": lambda: Slow(jnp.ones(())).blocks,
    "under vjp": lambda: lambda x: jax.vjp(filter_jit(slow, asynchronous=False), x)[0],
}
IMMEDIATE = {
    "function": lambda: filter_jit(slow),
    "asked for": lambda: filter_jit(slow, asynchronous=True),
    "module": lambda: filter_jit(Slow(jnp.ones(()))),
    "method": lambda: Slow(jnp.ones(())).returns_immediately,
}


@pytest.mark.parametrize("name", BLOCKING)
def test_a_call_that_is_not_asynchronous_blocks(name, large):
    assert is_done(BLOCKING[name](), large)


@pytest.mark.parametrize("name", IMMEDIATE)
def test_a_call_returns_immediately_by_default(name, large):
    assert not is_done(IMMEDIATE[name](), large)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_a_compiled_call_blocks_as_its_function_does(asynchronous, large):
    compiled = filter_jit(slow, asynchronous=asynchronous).lower(large).compile()
    assert is_done(compiled, large) is not asynchronous


def test_a_call_blocks_though_it_only_writes_to_a_ref(large):
    ref = jax.new_ref(large)
    write = filter_jit(_write, asynchronous=False)
    write(ref, large)
    write(ref, large)
    assert ref[...].is_ready()


def test_two_wrappings_of_a_function_each_do_as_they_were_told(large):
    fast, blocking = filter_jit(slow), filter_jit(slow, asynchronous=False)
    assert not is_done(fast, large)
    assert is_done(blocking, large)
    assert not is_done(fast, large)
    assert fast != blocking
    assert jtu.tree_structure(fast) != jtu.tree_structure(blocking)
    assert "asynchronous=False" in str(jtu.tree_structure(blocking))


@pytest.mark.parametrize("asynchronous", [True, False])
def test_pickles_and_pytrees_keep_it(asynchronous, large):
    jitted = filter_jit(slow, asynchronous=asynchronous)
    for other in (
        pickle.loads(pickle.dumps(jitted)),
        jax.tree.map(lambda x: x, jitted),
    ):
        assert other == jitted
        assert is_done(other, large) is not asynchronous


# --- install() ------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [None, True, False])
def test_calls_under_install_block_unless_asked_not_to(asynchronous, large):
    options = {} if asynchronous is None else {"asynchronous": asynchronous}
    returns_early = asynchronous is True
    with eqx_fastjit.installed(**options):
        assert is_done(eqx.filter_jit(slow), large) is not returns_early
        assert is_done(eqx.filter_jit(donate="none")(slow), large) is not returns_early
    eqx_fastjit.install(**options)
    try:
        assert is_done(eqx.filter_jit(slow), large) is not returns_early
        assert not is_done(eqx.filter_jit(slow, asynchronous=True), large)
        # The package's own means what it says.
        assert not is_done(filter_jit(slow), large)
    finally:
        eqx_fastjit.uninstall()


@pytest.mark.one_engine
def test_contexts_within_each_other_restore_what_was_there():
    theirs = eqx.filter_jit
    with eqx_fastjit.installed():
        blocking = eqx.filter_jit
        with eqx_fastjit.installed(asynchronous=True):
            assert eqx.filter_jit is filter_jit
            with eqx_fastjit.installed():
                assert eqx.filter_jit is blocking
            assert eqx.filter_jit is filter_jit
        assert eqx.filter_jit is blocking
        eqx_fastjit.install(asynchronous=True)
        assert eqx.filter_jit is filter_jit
    assert eqx.filter_jit is theirs


@pytest.mark.one_engine
def test_what_install_puts_in_place_can_be_pickled():
    with eqx_fastjit.installed():
        assert pickle.loads(pickle.dumps(eqx.filter_jit)) is eqx.filter_jit
        assert eqx.filter_jit.__name__ == "filter_jit" and eqx.filter_jit.__doc__


# --- the command ----------------------------------------------------------------------


@pytest.mark.one_engine
@pytest.mark.parametrize("command", ["run", "doctor"])
def test_commands_block_as_python_does_unless_asked_not_to(command):
    program = PROGRAMS / "asynchronous" / "ready.py"
    assert run(*COMMAND, command, program) == ["True"]
    assert run(*COMMAND, command, "--async", program) == ["False"]


# --- bad input ------------------------------------------------------------------------


@pytest.mark.one_engine
@pytest.mark.parametrize("value", ["x", None, 1, 0.0])
def test_anything_but_a_bool_is_one_clear_error(value):
    text = rf"asynchronous={value!r}\)`: expected True or False"
    with pytest.raises(TypeError, match=rf"`filter_jit\(\.\.\., {text}"):
        filter_jit(slow, asynchronous=value)
    with pytest.raises(TypeError, match=rf"`filter_jit\(\.\.\., {text}"):
        filter_jit(asynchronous=value)(slow)
    with pytest.raises(TypeError, match=rf"`install\(\.\.\., {text}"):
        eqx_fastjit.install(asynchronous=value)
    with pytest.raises(TypeError, match=rf"`installed\(\.\.\., {text}"):
        eqx_fastjit.installed(asynchronous=value).__enter__()
