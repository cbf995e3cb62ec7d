"""Reports are immutable: each dataclass is frozen, or listed here."""

import importlib
import pkgutil

import equinox as eqx
import pytest

import eqx_fastjit


pytestmark = pytest.mark.one_engine

# The engine's own, and what counts while a program runs: not part of a report.
MUTABLE = {
    "eqx_fastjit._compat.Errors",
    "eqx_fastjit._engine.Call",
    "eqx_fastjit._export._tree.TreeReader",
    "eqx_fastjit._keys.StaticArray",
    "eqx_fastjit._parts.Tied",
    "eqx_fastjit._record.History",
    "eqx_fastjit._record.Run",
    "eqx_fastjit._record.Trace",
    "eqx_fastjit._specialization.Specialization",
    "eqx_fastjit._static_keys._Child",
    "eqx_fastjit.doctor._plain.Compile",
    "eqx_fastjit.doctor._plain.Miss",
    "eqx_fastjit.doctor._waits.Waiting",
    "eqx_fastjit.doctor._watch.Seen",
    "eqx_fastjit.insight._guard._Guarding",
    "eqx_fastjit.insight._samples.Called",
    "eqx_fastjit.insight._samples.Signature",
}


def _dataclasses():
    """All dataclasses of the package, by name, except those of the zoo."""
    for found in pkgutil.walk_packages(eqx_fastjit.__path__, "eqx_fastjit."):
        if "._zoo" in found.name or found.name.endswith("__main__"):
            continue
        for x in vars(importlib.import_module(found.name)).values():
            if not isinstance(x, type) or x.__module__ != found.name:
                continue
            if "__dataclass_params__" in vars(x) and not issubclass(x, eqx.Module):
                yield f"{found.name}.{x.__qualname__}", x.__dataclass_params__


def test_dataclasses_are_frozen():
    found = dict(_dataclasses())
    assert len(found) > 40
    assert {name for name, params in found.items() if not params.frozen} == MUTABLE
