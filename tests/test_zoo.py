"""Every program of the zoo runs, and all contenders compute the same."""

import importlib
import inspect
import sys
import typing

import jax
import pytest

from eqx_fastjit import cli
from eqx_fastjit.bench import case_info, case_names, check_equal, make_case
from eqx_fastjit.bench._case import Makers
from eqx_fastjit.bench._zoo import CONTENDERS, PROGRAMS


NAMES = [name for programs in PROGRAMS.values() for name in programs]

# These compile for so long that only two contenders are compared.
_LONG = {
    "diffusion",
    "encoder",
    "gan",
    "gpt_adamw",
    "mixer",
    "neural_ode",
    "pinn",
    "resnet",
    "vae",
    "vit",
}

# These compile quickly, and together contain all kinds of nodes and statics.
_BOTH = {
    "configured_layers",
    "decode",
    "enums",
    "environment",
    "experts",
    "lora",
    "nested_parameters",
    "numpy_weights",
    "partial_activations",
    "particles",
    "policy",
    "statics_200",
}


_compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, _, **kwargs: _compiled.append(event)
)


def _compilations():
    """The number of programs compiled so far."""
    return sum("backend_compile" in event for event in _compiled)


@pytest.fixture(autouse=True)
def as_a_user_has_it():
    # As in `test_bench_cases`. Programs run only a few times, so XLA need not optimize.
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.mark.parametrize("name", NAMES)
def test_contenders_agree(name, engine):
    if engine != "native" and name not in _BOTH:
        pytest.skip("tried on one engine, for time")
    for package in case_info(name).requires:
        pytest.importorskip(package)
    calls = make_case(name, ("flat", "ours") if name in _LONG else None)
    # Also with the state that a call returned. Its weak types are gone after three
    # calls.
    for _ in range(3):
        check_equal(calls)
    before = _compilations()
    for call in calls.values():
        call()
    # Otherwise the benchmark would time a compilation.
    assert _compilations() == before


@pytest.mark.one_engine
@pytest.mark.parametrize("file", PROGRAMS)
def test_every_program_is_listed(file):
    if file == "differential":
        pytest.importorskip("diffrax")
    module = importlib.import_module(f"eqx_fastjit.bench._zoo.{file}")
    programs = [
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__
        and typing.get_type_hints(function).get("return") == Makers
        and not name.startswith("_")
    ]
    assert sorted(programs) == sorted(PROGRAMS[file])


@pytest.mark.one_engine
def test_the_zoo_is_a_group():
    zoo = [name for name in case_names() if case_info(name).group == "zoo"]
    assert zoo == NAMES and len(zoo) >= 24
    assert all(case_info(name).contenders == CONTENDERS for name in zoo)


@pytest.mark.one_engine
def test_what_is_not_installed_is_skipped_and_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "diffrax", None)
    assert cli.main(["bench", "--cases", "neural_ode"]) == 2
    err = capsys.readouterr().err
    assert "Skipped neural_ode, which needs diffrax" in err
    file = tmp_path / "results.json"
    argv = ["bench", "--cases", "neural_ode,identity", "--rounds", "1"]
    argv += ["--device", "cpu", "--contenders", "jit,ours", "--json", str(file)]
    assert cli.main(argv) == 0
    assert "Skipped neural_ode, which needs diffrax" in capsys.readouterr().out
    assert '"neural_ode"' not in file.read_text()
