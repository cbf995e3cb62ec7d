"""What the tests of the benchmarks share."""

import jax
import pytest


@pytest.fixture
def as_users_have_it():
    """JAX's default promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def results():
    """A results file: two widths, a whole function, and a first call."""

    def entry(name, group, times):
        return {"name": name, "group": group, "title": f"a {name}", "times": times}

    def calls(ours):
        times = {"jit": 10.0, "flat": 9.0, "eqx": 100.0, "ours": ours}
        of_rounds = {contender: [time] * 8 for contender, time in times.items()}
        return {"dispatch": of_rounds, "blocked": of_rounds}

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
            entry("mlp_8", "table", calls(5.0)),
            entry("mlp_16", "table", calls(20.0)),
            entry("gan", "zoo", calls(8.0)),
            entry("first_call", "first", {"total": {"eqx": [2.0], "ours": [3.0]}}),
        ],
    }
