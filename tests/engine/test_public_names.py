"""What is public: these names, with documentation, and nothing else."""

import pytest

import eqx_fastjit


# A change of this list is one that users see.
NAMES = [
    "BoundJit",
    "Compiled",
    "Exported",
    "JitWrapped",
    "Lowered",
    "Traced",
    "engine",
    "fast_filter_jit",
    "filter_jit",
    "install",
    "installed",
    "load",
    "uninstall",
]


def test_public_names():
    """`__all__` and `dir` show them, and each is there and says that it is ours."""
    assert sorted(eqx_fastjit.__all__) == NAMES
    for name in NAMES:
        assert getattr(eqx_fastjit, name).__doc__
        assert getattr(eqx_fastjit, name).__module__.startswith("eqx_fastjit")
    assert set(NAMES) | {"insight", "__version__"} <= set(dir(eqx_fastjit))
    assert eqx_fastjit.fast_filter_jit is eqx_fastjit.filter_jit
    with pytest.raises(AttributeError, match="filter_jot"):
        _ = eqx_fastjit.filter_jot
