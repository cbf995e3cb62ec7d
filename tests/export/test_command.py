"""`eqx-fastjit export` and `eqx-fastjit show`."""

import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import load
from eqx_fastjit._export._command import export_command, show_command


pytest.importorskip("flatbuffers", reason="`save` needs it")
pytestmark = pytest.mark.one_engine

_MODULE = """
    import equinox as eqx, eqx_fastjit, jax, jax.numpy as jnp

    class Model(eqx.Module):
        weight: jax.Array
        name: str = eqx.field(static=True)

        @eqx_fastjit.filter_jit
        def method(self, x):
            return x @ self.weight

    model = Model(jnp.eye(3), "a model")

    @eqx_fastjit.filter_jit(donate="all-except-first")
    def jitted(model, x, n=2):
        return model.method(x) * n

    x = jax.ShapeDtypeStruct((3,), jnp.float32)
    number = 3

    def arguments():
        return model, x

    def keywords():
        return {"x": x, "model": model}

    def alone():
        return (x,)

    def nothing():
        return 3

    def refused():
        return eqx.nn.Lambda(lambda x: x), x
"""


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "exported_by_command.py").write_text(textwrap.dedent(_MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "exported_by_command"


@pytest.mark.parametrize("args", ["arguments", "keywords"])
def test_export_writes_a_file(module, args):
    export_command(f"{module}:jitted", f"{module}:{args}", "f", compiled=True)
    import exported_by_command

    x = jnp.arange(3.0)
    f = load("f", trusted=True)
    np.testing.assert_allclose(f(exported_by_command.model, x), [0, 2, 4])
    assert x.is_deleted()


def test_methods_can_be_exported(module):
    export_command(f"{module}:model.method", f"{module}:alone", "f", vjp_order=1)
    np.testing.assert_allclose(load("f")(jnp.arange(3.0)), [0, 1, 2])


def test_show_says_what_is_in_a_file(module):
    export_command(
        f"{module}:jitted",
        f"{module}:arguments",
        "f",
        compiled=True,
        platforms=("cpu", "cuda"),
    )
    out = show_command("f")
    for fragment in (
        "f: jitted, made by",
        "StableHLO for cpu, cuda (1 devices)",
        "native code for jax",
        "model.weight  float32[3,3]",
        "model.name  str 'a model'",
        "n  int 2",
        "<result>  float32[3]",
        "donate='all-except-first'",
    ):
        assert fragment in out, out


@pytest.mark.parametrize(
    ("function", "args", "error", "message"),
    [
        ("no_such", "arguments", AttributeError, "no_such"),
        ("number", "arguments", ValueError, "no jitted function"),
        ("jitted", "nothing", ValueError, "returned int; expected a tuple"),
        ("jitted", "refused", ValueError, r"`model\.fn` cannot be exported"),
    ],
)
def test_errors_say_what_is_wrong(module, tmp_path, function, args, error, message):
    with pytest.raises(error, match=message):
        export_command(f"{module}:{function}", f"{module}:{args}", "f")
    assert not (tmp_path / "f").exists()


def test_a_file_that_is_none_is_an_error(module):
    with pytest.raises(ModuleNotFoundError, match="no_module"):
        export_command("no_module:x", f"{module}:alone", "f")
    with pytest.raises(ValueError, match="cannot be loaded"):
        show_command("exported_by_command.py")
