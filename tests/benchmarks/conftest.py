"""What the tests of the benchmarks share."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest


ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def as_users_have_it():
    """JAX's default promotion, and quick compilation: programs run a few times only."""
    jax.config.update("jax_disable_most_optimizations", True)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def run():
    """Run `python -m MODULE ARGS...` in a real process, on the CPU."""

    def run(*words, **env):
        return subprocess.run(
            [sys.executable, "-m", *map(str, words)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "JAX_PLATFORMS": "cpu",
                "COLUMNS": "200",
                **env,
            },
        )

    return run


@pytest.fixture
def results():
    """Hand-made results: two widths, and a first call."""

    def entry(name, group, times, width=None):
        return {"name": name, "group": group, "title": name, "width": width, **times}

    def calls(ours):
        by = {"jit": [10.0] * 8, "eqx": [100.0] * 8, "ours": [ours] * 8}
        return {"times": {"dispatch": by, "blocked": by}}

    names = ("trace", "lower", "compile", "run", "total")
    stages = {name: {"ours": [2]} for name in names}
    return {
        "date": "2026-01-02T03:04:05+00:00",
        "command": "python -m benchmarks",
        "commit": "0" * 40 + "+",
        "machine": {"cpu": "A|CPU", "cores": 2, "system": "Linux"},
        "device": {"platform": "cpu", "kind": "cpu"},
        "versions": {"jax": "0.10.2"},
        "engine": "native",
        "interrupted": False,
        "problems": ["mlp_4: ValueError: why"],
        "cases": [
            entry("mlp_8", "table", calls(5.0), width=8),
            entry("mlp_16", "table", calls(20.0), width=16),
            entry("gan", "zoo", calls(8.0)),
            entry("first_call", "first", {"times": stages}),
        ],
    }
