"""`eqx-fastjit export` and `eqx-fastjit show`."""

import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import cli, load


pytest.importorskip("flatbuffers", reason="the portable form needs it")

_MODULE = """
    import equinox as eqx, eqx_fastjit, jax, jax.numpy as jnp

    class Model(eqx.Module):
        weight: jax.Array
        name: str = eqx.field(static=True)

        @eqx_fastjit.filter_jit
        def method(self, x):
            return x @ self.weight

    model = Model(jnp.eye(3), "a model")

    def plain(model, x, n=2):
        x = eqx.error_if(x, x[0] > 10, "too large")
        return model.method(x) * n

    jitted = eqx_fastjit.filter_jit(plain, donate="all-except-first")
    theirs = eqx.filter_jit(plain, donate="all-except-first")
    x = jax.ShapeDtypeStruct((3,), jnp.float32)

    def arguments():
        return model, x

    def keywords():
        return {"model": model, "x": x}

    def nothing():
        return 3

    def refused():
        return eqx.nn.Lambda(lambda x: x), x

    number = 3
"""


pytestmark = pytest.mark.one_engine


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "exported_by_command.py").write_text(textwrap.dedent(_MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "exported_by_command"


def _export(module, function, args, *options):
    command = ["export", f"{module}:{function}", "--args", f"{module}:{args}"]
    return cli.main([*command, "-o", "f.fastjit", *options])


@pytest.mark.parametrize("function", ["plain", "jitted", "theirs"])
@pytest.mark.parametrize("args", ["arguments", "keywords"])
def test_export(module, function, args, capsys):
    assert _export(module, function, args, "--compiled", "--vjp-order", "1") == 0
    assert "wrote f.fastjit (" in capsys.readouterr().out
    import exported_by_command

    x = jnp.arange(3.0)
    f = load("f.fastjit", allow=(module,))
    np.testing.assert_allclose(f(exported_by_command.model, x), [0, 2, 4])
    assert x.is_deleted() == (function != "plain")


def test_show(module, capsys):
    _export(module, "jitted", "arguments", "--compiled", "--platforms", "cpu,cuda")
    capsys.readouterr()
    assert cli.main(["show", "f.fastjit"]) == 0
    out = capsys.readouterr().out
    for fragment in (
        "f.fastjit: plain(model, x, n)",
        "StableHLO for cpu, cuda; 1 device; no gradients",
        "native code for cpu",
        "model.weight  float32[3,3]",
        "float32[3] (donated)",
        "model.name  'a model'",
        "n           2",
        "too large",
        "exported_by_command:Model",
        "flops",
        "time to export: trace",
    ):
        assert fragment in out, out


def test_errors(module, tmp_path, capsys):
    for argv, message in (
        (("no_such", "arguments"), "no 'no_such' there"),
        (("number", "arguments"), "3 cannot be called"),
        (("plain", "nothing"), "returned `int`; expected a tuple"),
        (("plain", "refused"), "`model.fn` cannot be exported"),
        (("plain", "arguments", "--no-portable"), "only with --compiled"),
        (("plain", "arguments", "--vjp-order", "-1"), "expected at least 0"),
        (("plain", "arguments", "--platforms", "cpu,gpus"), "--platforms 'gpus'"),
    ):
        assert _export(module, *argv) == 2
        assert message in capsys.readouterr().err
        assert not (tmp_path / "f.fastjit").exists()
    argv = ["export", "no_module:x", "--args", "x", "-o", "f"]
    assert cli.main(argv) == 2
    assert "No module named 'no_module'" in capsys.readouterr().err
    argv = ["export", f"{module}:plain", "--args", "x", "-o", "no/such/f"]
    assert cli.main(argv) == 2
    assert "-o: cannot write" in capsys.readouterr().err
    for name in ("none", f"{module}.py"):
        assert cli.main(["show", name]) == 2
        assert name in capsys.readouterr().err
