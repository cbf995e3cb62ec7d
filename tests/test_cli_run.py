"""`eqx-fastjit run` against plain `python`: output, exit code and tracebacks."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import zipfile

import pytest

from eqx_fastjit import cli


pytestmark = pytest.mark.one_engine


PLAIN = [sys.executable]
OURS = [sys.executable, "-m", "eqx_fastjit.cli", "run"]


def execute(command, cwd, stdin="", env=()):
    return subprocess.run(
        command,
        cwd=cwd,
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, **dict(env)},
        timeout=300,
    )


def both(args, cwd, **kwargs):
    """Run with `python` and with the command; check that output and exit code agree.

    Addresses are ignored. Returns the run with `python`.
    """
    plain = execute(PLAIN + args, cwd, **kwargs)
    ours = execute(OURS + args, cwd, **kwargs)

    def tidy(text):
        return re.sub(r"0x[0-9a-f]+", "0x", text)

    assert tidy(ours.stdout) == tidy(plain.stdout)
    assert tidy(ours.stderr) == tidy(plain.stderr)
    assert ours.returncode == plain.returncode
    return plain


@pytest.fixture
def write(tmp_path):
    def write(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        return path

    return write


SHOW = """
    import sys
    names = {k: v for k, v in globals().items() if k != "sys"}
    print(names, sys.argv, sys.path[:3], sys.stdin.read())
    print(sys.modules["__main__"].__dict__ is globals(), len(sys.path))
"""


@pytest.mark.parametrize("spelling", ["a.py", "./a.py", "../{}/a.py", "link.py"])
def test_what_a_script_sees(spelling, write, tmp_path):
    write("sub/a.py", SHOW)
    (tmp_path / "sub" / "link.py").symlink_to(tmp_path / "sub" / "a.py")
    args = [spelling.format("sub"), "--help", "-m", "x", "--", "-c", "--version", ""]
    out = both(args, tmp_path / "sub", stdin="typed")
    assert "'--help', '-m', 'x', '--'" in out.stdout and "typed" in out.stdout


def test_what_a_module_sees(write, tmp_path):
    write("package/__init__.py", "")
    write("package/__main__.py", SHOW)
    write("package/part.py", SHOW)
    assert "'package'" in both(["-m", "package", "-m", "--help"], tmp_path).stdout
    assert "part.py" in both(["-m", "package.part", "1"], tmp_path).stdout
    out = both(["-m", "package.missing"], tmp_path)
    assert out.returncode == 1 and "No module named package.missing" in out.stderr


def test_directories_zip_files_and_compiled_files(write, tmp_path):
    main = write("app/__main__.py", SHOW)
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(main, "__main__.py")
    for name in ("app", "app/", "app.zip"):
        assert "__main__.py" in both([name, "1"], tmp_path).stdout
    code = "import py_compile; py_compile.compile('app/__main__.py', 'compiled.pyc')"
    assert execute([*PLAIN, "-c", code], tmp_path).returncode == 0
    assert "SourcelessFileLoader" in both(["compiled.pyc"], tmp_path).stdout


ENDINGS = {
    "falls_off": "print(1)",
    "exit_none": "import sys; sys.exit()",
    "exit_code": "import sys; sys.exit(7)",
    "exit_true": "import sys; sys.exit(True)",
    "exit_large": "import sys; sys.exit(258)",
    "exit_text": "import sys; print('out'); sys.exit('a reason')",
    "exit_object": "raise SystemExit(('a', 1))",
    "raises": """
        def inner():
            raise ValueError("wrong")
        def outer():
            try:
                inner()
            except ValueError as e:
                e.add_note("a note")
                raise KeyError("chained") from e
        outer()
    """,
    "context": """
        try:
            1 / 0
        except ZeroDivisionError:
            undefined
    """,
    "group": "raise ExceptionGroup('g', [ValueError(1), TypeError(2)])",
    "syntax": "print(1)\nprint(2\n",
    "import_error": "import nothing_of_that_name",
    "excepthook": """
        import sys
        def hook(kind, value, traceback):
            print("hook", kind, value, traceback.tb_frame.f_code.co_name)
            print(sys.last_type, sys.last_value is value)
        sys.excepthook = hook
        raise ValueError("seen by the hook")
    """,
    "broken_excepthook": """
        import sys
        def hook(kind, value, traceback):
            raise TypeError("in the hook")
        sys.excepthook = hook
        raise ValueError("original")
    """,
    "exit_in_excepthook": """
        import sys
        sys.excepthook = lambda *_: sys.exit(5)
        raise ValueError
    """,
    "atexit": """
        import atexit, threading, time
        class Thing: pass
        atexit.register(lambda: print("at exit", Thing.__module__, len(globals()) > 5))
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        print("main is done")
        raise ValueError
    """,
    "interrupted": """
        import os, signal, time
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    """,
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "pickles": """
        import dataclasses, pickle, typing
        @dataclasses.dataclass
        class Thing:
            x: "int"
            y: "typing.ClassVar[int]" = 3
        thing = pickle.loads(pickle.dumps(Thing(1)))
        print(type(thing) is Thing, thing, typing.get_type_hints(Thing))
    """,
    "future": """
        from __future__ import annotations
        def f(x: undefined): pass
        print(f.__annotations__)
        x: also_undefined
        print(__annotations__)
    """,
    "spawns": """
        import multiprocessing
        def double(x):
            print(__name__, flush=True)
            return 2 * x
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                print(pool.map(double, [1, 2]))
    """,
}


@pytest.mark.parametrize("name", ENDINGS)
def test_how_a_script_ends(name, write, tmp_path):
    script = write(f"{name}.py", ENDINGS[name])
    out = both([script.name], tmp_path)
    if name == "interrupted":
        assert out.returncode == -signal.SIGINT


def test_a_module_that_raises(write, tmp_path):
    write("package/__init__.py", "")
    write("package/__main__.py", "def f():\n    raise ValueError('wrong')\nf()")
    assert "ValueError: wrong" in both(["-m", "package"], tmp_path).stderr


def test_safe_path(write, tmp_path):
    write("sub/a.py", SHOW)
    both(["sub/a.py"], tmp_path, env={"PYTHONSAFEPATH": "1"})
    both(["sub"], write("sub/__main__.py", SHOW).parent.parent)


INSTALLED = """
    import os, sys
    before = list(sys.meta_path)
    assert not {"jax", "numpy", "equinox"} & sys.modules.keys()
    import importlib.util
    spec = importlib.util.find_spec("equinox")  # does not count as an import
    assert spec.origin.endswith("__init__.py")
    os.environ["JAX_NUM_CPU_DEVICES"] = "3"
    os.environ["JAX_ENABLE_X64"] = "1"
    import equinox as eqx
    import eqx_fastjit, jax
    import jax.numpy as jnp
    assert isinstance(eqx.filter_jit(len), eqx_fastjit.JitWrapped)
    assert eqx._jit.filter_jit is eqx.filter_jit
    assert len(jax.devices()) == 3
    assert jnp.ones(2).dtype == "float64"
    # Nothing of the import hook remains.
    assert len(sys.meta_path) == len(before) - 1
    assert type(eqx.__loader__) is type(eqx.__spec__.loader) is type(__loader__)
    assert eqx.__spec__.loader.name == "equinox"

    @eqx.filter_jit
    def f(x, n):
        return x * n

    print(f(jnp.arange(3), 2), type(f).__module__)
    f(jnp.arange(3), "a")
"""


def test_installed_when_equinox_is_imported_and_not_before(write, tmp_path):
    script = write("a.py", INSTALLED)
    out = execute([*OURS, script], tmp_path)
    assert out.stdout == "[0 2 4] eqx_fastjit._jit\n", out.stderr
    assert out.returncode == 1 and "TypeError" in out.stderr
    assert "_script.py" not in out.stderr and "eqx_fastjit/cli" not in out.stderr


@pytest.mark.parametrize(
    "first",
    [
        "from eqx_fastjit import filter_jit",
        "import optax, equinox.nn",
    ],
)
def test_installed_whoever_imports_equinox(first, write, tmp_path):
    script = write(
        "a.py",
        f"""
        {first}
        import equinox, eqx_fastjit, sys
        print(equinox.filter_jit is eqx_fastjit.filter_jit)
        print([f for f in sys.meta_path if "eqx_fastjit" in type(f).__module__])
        """,
    )
    out = execute([*OURS, script], tmp_path)
    assert out.stdout == "True\n[]\n", out.stderr


def test_a_failing_import_of_equinox(write, tmp_path):
    """The traceback shows neither the import hook nor its frames."""
    write("equinox/__init__.py", "from .inner import f\n")
    write("equinox/inner.py", "raise RuntimeError('broken')\n")
    out = both([write("a.py", "import equinox\n").name], tmp_path)
    assert "RuntimeError: broken" in out.stderr
    script = write("b.py", "import sys\nsys.modules['equinox'] = None\nimport equinox")
    both([script.name], tmp_path)


def test_an_error_inside_of_a_jitted_function(write, tmp_path):
    script = write(
        "a.py",
        """
        import jax, jax.numpy as jnp
        @jax.jit
        def f(x):
            return x + jnp.ones(4)
        f(jnp.ones(3))
        """,
    )
    assert "add got incompatible shapes" in both([script.name], tmp_path).stderr


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "expected SCRIPT or -m MODULE"),
        (["-m"], "argument -m: expected the name of a module"),
        (["--nonsense", "a.py"], "unrecognized arguments: --nonsense"),
        (["nosuch.py", "--help"], "cannot open 'nosuch.py': no such file"),
        (["."], "cannot run '.': a directory with no __main__.py"),
    ],
)
def test_bad_arguments(argv, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(["run", *argv])
    except SystemExit as e:
        code = e.code
    assert code == 2
    assert message in capsys.readouterr().err.replace("\n", " ")


def test_help(capsys):
    with pytest.raises(SystemExit) as e:
        cli.main(["run", "--help"])
    assert e.value.code == 0
    assert "run [OPTIONS] -m MODULE [ARGS...]" in capsys.readouterr().out
