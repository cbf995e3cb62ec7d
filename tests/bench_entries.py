"""Benchmark results made by hand, and what a case is made of."""

from unittest import mock

from eqx_fastjit.bench import _contenders


def entry(name, times, *, group="mlp", device="cpu", unit="us", **size):
    return {
        "name": name,
        "group": group,
        "title": f"title of {name}",
        "size": size,
        "device": device,
        "device_kind": f"kind of {device}",
        "unit": unit,
        "times": times,
    }


def results(*entries, **changes):
    return {
        "schema": 1,
        "date": "2026-01-02T03:04:05+00:00",
        "command": "eqx-fastjit bench",
        "machine": {
            "cpu": "CPU [b]<7>",
            "cores": 4,
            "system": "Linux",
            "architecture": "x86_64",
        },
        "versions": {"python": "3.11.7", "jax": "0.10.2"},
        "engine": "native",
        "interrupted": False,
        "problems": [],
        "cases": list(entries),
        **changes,
    }


# Three rounds: quartiles are half-way between them.
CASES = (
    entry(
        "mlp_8",
        {
            "dispatch": {"jit": [10.0, 12.0, 14.0], "ours": [5.0, 6.0, 7.0]},
            "blocked": {"jit": [20.0, 20.0, 20.0], "ours": [30.0, 30.0, 30.0]},
        },
        width=8,
        layers=3,
    ),
    entry(
        "batch_4",
        {"blocked": {"eqx": [8.0, 8.0, 8.0], "ours": [7.0, 8.0, 9.0]}},
        group="batch",
        batch=4,
    ),
    entry("loop_10", {"trace": {"ours": [0.0], "jit": [100.0]}}, unit="ms"),
)


def arguments_of(makers):
    """What the call of `ours` gives to its jitted function."""
    given = []
    jit = lambda fun, **options: lambda *args: given.append(args) or args  # noqa: E731
    with mock.patch.dict(_contenders.FILTER_JITS, ours=jit):
        makers()["ours"]()()
    (args,) = given
    return args
