"""`eqx-fastjit export` and `eqx-fastjit show`."""

import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import cli, load


pytest.importorskip("flatbuffers", reason="`save` needs it")

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


def export(module, function, args, *options):
    command = ["export", f"{module}:{function}", "--args", f"{module}:{args}"]
    return cli.main([*command, "-o", "f", *options])


@pytest.mark.parametrize("args", ["arguments", "keywords"])
def test_export_writes_a_file(module, args, capsys):
    assert export(module, "jitted", args, "--compiled") == 0
    assert "f (" in capsys.readouterr().out

    import exported_by_command

    x = jnp.arange(3.0)
    f = load("f", trusted=True)
    np.testing.assert_allclose(f(exported_by_command.model, x), [0, 2, 4])
    assert x.is_deleted()


def test_methods_can_be_exported(module):
    assert export(module, "model.method", "alone") == 0
    np.testing.assert_allclose(load("f")(jnp.arange(3.0)), [0, 1, 2])


def test_show_says_what_is_in_a_file(module, capsys):
    export(module, "jitted", "arguments", "--compiled")
    capsys.readouterr()
    assert cli.main(["show", "f"]) == 0
    out = capsys.readouterr().out
    for fragment in (
        "f: jitted, made by",
        "StableHLO for cpu, 1 device(s)",
        "native code for: jax",
        "model.weight  float32[3,3]",
        "model.name  str 'a model'",
        "n  int 2",
        "<result>  float32[3]",
        "donate='all-except-first'",
    ):
        assert fragment in out, out


@pytest.mark.parametrize(
    ("function", "args", "message"),
    [
        ("no_such", "arguments", "no_such"),
        ("__name__", "arguments", "expected functions, as MODULE:FUNCTION"),
        ("jitted", "nothing", "returned `int`; expected a tuple"),
        ("jitted", "refused", "`model.fn` cannot be exported"),
    ],
)
def test_errors_say_what_is_wrong(module, tmp_path, capsys, function, args, message):
    assert export(module, function, args) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    "source", ["raise ValueError('theirs')", "def f(): raise OSError('theirs')"]
)
def test_errors_of_the_users_code_have_their_traceback(tmp_path, source):
    (tmp_path / "failing.py").write_text(source)
    with pytest.raises(Exception, match="theirs"):
        export("failing", "f", "f")
