"""How programs are given, run and watched by subcommands, in this process."""

import builtins
import importlib
import io
import os
import sys
import types

import jax
import pytest

import eqx_fastjit
from eqx_fastjit import cli
from eqx_fastjit.cli import (
    _doctor,
    _export,
    _lock,
    _profile,
    _run,
    _script,
    _show,
    _versions,
)
from eqx_fastjit.cli._common import check_output, CommandError, write_output
from eqx_fastjit.cli._script import Program


pytestmark = [pytest.mark.one_engine, pytest.mark.usefixtures("kept_excepthook")]


def parse(module, *argv):
    parser = _script.ProgramParser()
    module.declare(parser)
    return parser.parse_args(list(argv))


# --- the command line -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "defaults"),
    [
        (_profile, {"html": None, "calls": None, "functions": 1}),
        (
            _doctor,
            {
                **dict.fromkeys(("json", "html", "trace", "interim", "slow")),
                "fail_on": "",
                "programs": False,
                "numerics": False,
            },
        ),
        (
            _lock,
            {
                "output": "fastjit.lock",
                "cache_dir": None,
                "check": False,
                "precompile": False,
            },
        ),
        (_run, {}),
    ],
)
def test_defaults(module, defaults):
    found = vars(parse(module, "a.py"))
    assert found.pop("program") == Program("a.py", (), False)
    assert found == defaults


def test_defaults_of_export_and_show():
    found = vars(parse(_export, "m:f", "--args", "m:a", "-o", "f"))
    assert found == {
        "function": "m:f",
        "args": "m:a",
        "output": "f",
        "compiled": False,
        "portable": True,
        "platforms": None,
        "vjp_order": 0,
    }
    assert (
        parse(_export, "f", "--args", "a", "-o", "f", "--no-portable").portable is False
    )
    assert vars(parse(_show, "f")) == {"file": "f", "all": False}
    for module, argv in ((_export, ["f", "-o", "f"]), (_export, ["f", "--args", "a"])):
        with pytest.raises(SystemExit):
            parse(module, *argv)
    with pytest.raises(SystemExit):
        parse(_lock, "--check", "--precompile", "a.py")


@pytest.mark.parametrize(
    ("argv", "name", "rest", "calls", "html"),
    [
        ("a.py --calls 1 x --html y", "a.py", "x --html y", 1, None),
        ("--calls 2 a.py --html p -- --html q", "a.py", "--html q", 2, "p"),
        ("--calls=2 a.py --html=p -m", "a.py", "-m", 2, "p"),
        ("-- --calls 1", "--calls", "1", None, None),
        ("-- -m x", "-m", "x", None, None),
        ("- x", "-", "x", None, None),
        ("a.py -- -- x", "a.py", "-- x", None, None),
        ("a.py - --calls 1", "a.py", "- --calls 1", None, None),
        ("-m mod --calls 3 -m", "mod", "-m", 3, None),
        ("--calls 1 -m mod x", "mod", "x", 1, None),
    ],
)
def test_whose_options_these_are(argv, name, rest, calls, html):
    options = parse(_profile, *argv.split())
    is_module = "-m mod" in argv
    assert options.program == Program(name, tuple(rest.split()), is_module)
    assert (options.calls, options.html) == (calls, html)


def test_flags_take_no_value():
    options = parse(_lock, "--check", "a.py", "--check", "-o", "x", "y")
    assert options.check and options.output == "x"
    assert options.program == Program("a.py", ("y",), False)
    # Without `trailing`, all that follows is the program's.
    assert parse(_run, "a.py", "--", "x").program.args == ("--", "x")
    assert parse(_run, "-m", "a", "-m").program == Program("a", ("-m",), True)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nonsense=1", "a.py"], "unrecognized arguments: --nonsense=1"),
        (["-m"], "argument -m: expected the name of a module"),
        ([], "expected SCRIPT or -m MODULE"),
        (["--"], "expected SCRIPT or -m MODULE"),
    ],
)
def test_bad_command_lines(argv, message, capsys):
    with pytest.raises(SystemExit):
        parse(_profile, *argv)
    assert message in capsys.readouterr().err


def test_arguments_of_the_process(monkeypatch):
    parser = _script.ProgramParser(prog="x")
    parser.add_program()
    monkeypatch.setattr(sys, "argv", ["x", "a.py", "b"])
    assert parser.parse_args().program == Program("a.py", ("b",), False)
    plain = _script.ProgramParser(prog="x")
    plain.add_argument("a")
    assert vars(plain.parse_args(["1"])) == {"a": "1"}
    assert "`--` ends them" in parse_help(_profile)
    assert "`--` ends them" not in parse_help(_run)


def parse_help(module):
    parser = _script.ProgramParser(prog="x")
    module.declare(parser)
    return " ".join(parser.format_help().split())


def test_main(capsys, monkeypatch):
    given = []

    def main(options):
        given.append(options.command)
        raise CommandError("why")

    monkeypatch.setattr(_show, "main", main)
    assert cli.main(["show", "f"]) == 2 and given == ["show"]
    assert capsys.readouterr() == ("", "eqx-fastjit: why\n")
    monkeypatch.setattr(sys, "argv", ["eqx-fastjit", "--help"])
    with pytest.raises(SystemExit, match="0"):
        cli.main()
    found = capsys.readouterr().out.split("COMMAND\n")[1].split()
    assert [x for x in cli._COMMANDS if x in found] == list(cli._COMMANDS)


# --- scripts --------------------------------------------------------------------------


def test_scripts_that_cannot_be_run(tmp_path, monkeypatch):
    script = tmp_path / "a.py"
    script.touch()
    _script.check_program(str(script), False)
    _script.check_program("no_such", True)
    (tmp_path / "d" / "__main__.py").mkdir(parents=True)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    for path, message in (
        (tmp_path / "none", "cannot open '{}': no such file"),
        (tmp_path / "d", "cannot run '{}': a directory with no __main__.py"),
        (script, "cannot open '{}': permission denied"),
    ):
        with pytest.raises(CommandError) as e:
            _script.check_program(str(path), False)
        assert str(e.value) == message.format(path)


@pytest.fixture
def process(monkeypatch):
    """What a program changes is restored."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "excepthook", lambda *args: seen.append(args))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    seen = []
    yield seen
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        vars(sys).pop(name, None)


def run(tmp_path, text, *args):
    script = tmp_path / "a.py"
    script.write_text(text)
    return _script.run_script(str(script), args, False)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", 0),
        ("raise SystemExit", 0),
        ("raise SystemExit(True)", 1),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('why')", 1),
        ("raise KeyboardInterrupt", 130),
        ("1 / 0", 1),
    ],
)
def test_exit_codes(text, code, process, tmp_path, capsys):
    found = run(tmp_path, text)
    assert found == code and type(found) is int
    assert capsys.readouterr().err == ("why\n" if "why" in text else "")
    assert _script.was_interrupted(code) == (code == 130)
    assert not _script.was_interrupted(1)
    if code == 130 or "/" in text:
        ((kind, value, traceback),) = process
        assert (kind, value, traceback) == (
            *(sys.last_type, sys.last_value),
            sys.last_traceback,
        )
        last = value if sys.version_info >= (3, 12) else None
        assert getattr(sys, "last_exc", None) is last
        # The first frame is the program's.
        assert traceback.tb_frame.f_code.co_filename == str(tmp_path / "a.py")
    else:
        assert process == []


def test_an_exit_code_alone_is_no_interrupt(process):
    assert not _script.was_interrupted(130)
    sys.last_type = ValueError
    assert not _script.was_interrupted(130)

    class Interrupt(KeyboardInterrupt):
        pass

    sys.last_type = Interrupt
    assert _script.was_interrupted(130)


def test_a_hook_for_errors_that_fails(process, tmp_path, capsys, monkeypatch):
    def fail(*args):
        raise TypeError("in the hook") from None

    monkeypatch.setattr(sys, "excepthook", fail)
    assert run(tmp_path, "1 / 0") == 1
    err = capsys.readouterr().err
    assert err.startswith("Error in sys.excepthook:\nTraceback")
    assert "in fail\n" in err and "TypeError: in the hook" in err
    assert "\n\nOriginal exception was:\nTraceback" in err
    assert err.endswith("ZeroDivisionError: division by zero\n")
    assert "_script.py" not in err and "During handling" not in err

    def leave(*args):
        sys.exit(5)

    monkeypatch.setattr(sys, "excepthook", leave)
    assert run(tmp_path, "1 / 0") == 5


SEES = """
import sys
seen = sys.argv, sys.path[0], __name__, __file__, __cached__, __builtins__
main = sys.modules["__main__"]
sys.seen = seen, main.__dict__ is globals(), __annotations__, type(__loader__).__name__
"""


def test_what_a_script_sees(process, tmp_path):
    kept = sys.modules["__main__"]
    assert run(tmp_path, SEES, "x", "-y") == 0
    path = str(tmp_path / "a.py")
    seen = vars(sys).pop("seen")
    assert seen == (
        ([path, "x", "-y"], str(tmp_path), "__main__", path, None, builtins),
        True,
        {},
        "SourceFileLoader",
    )
    assert _script._kept[-1] is kept
    del _script._kept[-1]


@pytest.mark.parametrize(
    ("safe", "always"), [(False, False), (True, False), (True, True)]
)
def test_the_first_path(safe, always, monkeypatch):
    monkeypatch.setattr(sys, "path", ["a", "b"])
    monkeypatch.setattr(
        _script,
        "sys",
        types.SimpleNamespace(
            path=sys.path, flags=types.SimpleNamespace(safe_path=safe)
        ),
    )
    _script._set_first_path("x", always)
    assert (
        sys.path
        == {
            (False, False): ["x", "b"],
            (True, False): ["a", "b"],
            (True, True): ["x", "a", "b"],
        }[safe, always]
    )


def test_ending_as_interrupted(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", None)
    with pytest.raises(KeyboardInterrupt):
        _script.end_as_interrupted()
    assert sys.excepthook(KeyboardInterrupt, None, None) is None


# --- import hooks ---------------------------------------------------------------------


@pytest.fixture
def path_of_modules(tmp_path, monkeypatch):
    """A folder to import from, in front of all others."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield tmp_path
    importlib.invalidate_caches()


def test_installed_after_the_outermost_import(path_of_modules, monkeypatch):
    monkeypatch.delitem(sys.modules, "equinox")
    log = []
    monkeypatch.setattr(eqx_fastjit, "install", lambda: log.append("installed"))
    (path_of_modules / "equinox.py").write_text(
        "import sys\nsys.log.append('equinox begins')\n"
        "import eqx_fastjit._a_part\nsys.log.append('equinox ends')\n"
    )
    monkeypatch.setattr(sys, "log", log, raising=False)
    monkeypatch.setattr(
        eqx_fastjit, "__path__", [*eqx_fastjit.__path__, str(path_of_modules)]
    )
    (path_of_modules / "_a_part.py").write_text("import sys\nsys.log.append('part')\n")
    before = list(sys.meta_path)
    _script.install_on_import(lambda: log.append("then"))
    assert sys.meta_path[1:] == before and log == []
    hook = sys.meta_path[0]
    for name in ("json", "argparse", "eqx_fastjit"):
        assert hook.find_spec(name) is None
    module = importlib.import_module("equinox")
    assert log == ["equinox begins", "part", "equinox ends", "installed", "then"]
    assert sys.meta_path == before and hook.depth == 0
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    monkeypatch.delitem(sys.modules, "eqx_fastjit._a_part")


def test_installed_at_once_if_equinox_is_there(path_of_modules, monkeypatch):
    log = []
    monkeypatch.setattr(eqx_fastjit, "install", lambda: log.append("installed"))
    before = list(sys.meta_path)
    _script.install_on_import(lambda: log.append("then"))
    assert log == ["installed", "then"] and sys.meta_path == before
    _script.install_on_import()
    assert log == ["installed", "then", "installed"]


def test_an_import_that_fails_may_be_repeated(path_of_modules, monkeypatch):
    monkeypatch.delitem(sys.modules, "equinox")
    log = []
    monkeypatch.setattr(eqx_fastjit, "install", lambda: log.append("installed"))
    _script.install_on_import()
    (path_of_modules / "equinox.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module("equinox")
        assert sys.meta_path[0].depth == 0 and log == []
    (path_of_modules / "equinox.py").write_text("'now it is longer'")
    importlib.invalidate_caches()
    importlib.import_module("equinox")
    assert log == ["installed"]


def test_when_jax_is_imported(path_of_modules, monkeypatch):
    log = []
    before = list(sys.meta_path)
    _script.when_imported("jax", lambda: log.append("at once"))
    assert log == ["at once"] and sys.meta_path == before
    monkeypatch.delitem(sys.modules, "jax")
    (path_of_modules / "jax.py").write_text("import sys\nsys.log.append('jax')\n")
    monkeypatch.setattr(sys, "log", log, raising=False)
    _script.when_imported("jax", lambda: log.append("then"))
    hook = sys.meta_path[0]
    assert hook.find_spec("equinox") is None and hook.find_spec("jaxlib") is None
    old = object()  # a finder without `find_spec`
    sys.meta_path.insert(1, old)
    importlib.import_module("jax")
    assert log == ["at once", "jax", "then"] and sys.meta_path == [old, *before]


def test_a_watched_program(monkeypatch, capsys):
    log = []
    watch = types.SimpleNamespace(
        **{
            name: lambda name=name: log.append(name)
            for name in ("begin", "jax_imported", "equinox_imported", "stop")
        }
    )
    monkeypatch.setattr(_script, "when_imported", lambda name, then: then())
    monkeypatch.setattr(_script, "install_on_import", lambda then: then())

    def run_script(*program):
        log.append(program)
        raise CommandError("why")

    monkeypatch.setattr(_script, "run_script", run_script)
    with pytest.raises(CommandError):
        _script.run_watched(Program("a", ("b",), True), watch)
    names = ["begin", "jax_imported", "equinox_imported"]
    assert log == [*names, ("a", ("b",), True), "stop"]


def test_output_that_the_program_has_closed(monkeypatch):
    closed, flushed = io.StringIO(), []
    closed.close()
    stream = types.SimpleNamespace(flush=lambda: flushed.append(1))
    for out in (None, closed):
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", stream)
        _script.flush()
    assert flushed == [1, 1]


def test_a_file_that_cannot_be_written(tmp_path):
    path = str(tmp_path / "no" / "a")
    with pytest.raises(CommandError) as e:
        write_output("-o", path, "text")
    assert str(e.value) == f"-o: cannot write {path!r}: No such file or directory"
    with pytest.raises(CommandError, match=r"--x: cannot write .*: No such file"):
        check_output("--x", path)
    write_output("-o", str(tmp_path / "a"), "täxt")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "täxt"


# --- run ------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["", "compiles"])
def test_run(log, program, monkeypatch):
    done = []
    monkeypatch.setenv("EQX_FASTJIT_LOG", log)
    monkeypatch.setattr(_run, "when_imported", lambda *a: done.append(a))
    monkeypatch.setattr(_run, "install_on_import", lambda *f: done.append(f))
    monkeypatch.setattr(_run, "run_script", lambda *program: done.append(program) or 7)
    assert cli.main(["run", "a.py", "x"]) == 7
    before = [("jax", _run._log), (_run._log,)] if log else [()]
    assert done == [*before, ("a.py", ("x",), False)]
    monkeypatch.setattr(cli, "was_interrupted", lambda code: code == 7)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["run", "a.py"])


@pytest.mark.parametrize(
    ("equinox", "begins"),
    [
        (types.SimpleNamespace(filter_jit=1), True),
        (types.SimpleNamespace(), False),  # it imports JAX, and is not complete
        (None, True),
    ],
)
def test_when_the_log_begins(equinox, begins, monkeypatch):
    begun = []
    monkeypatch.setattr(_run, "_begin_log", lambda: begun.append(1))
    modules = {} if equinox is None else {"equinox": equinox}
    monkeypatch.setattr(_run, "sys", types.SimpleNamespace(modules=modules))
    _run._log()
    assert bool(begun) == begins


# --- --version ------------------------------------------------------------------------


def test_versions(monkeypatch, capsys):
    def version(name):
        if name in ("jaxlib", "flax"):
            raise _versions.PackageNotFoundError
        return f"{len(name)}"

    monkeypatch.setattr(_versions, "version", version)
    environ = {"JAX_B": "2", "EQX_A": "1", "OTHER": "3", "XLA_FLAGS": "x"}
    monkeypatch.setattr(os, "environ", environ)
    devices = [
        types.SimpleNamespace(platform="gpu", device_kind=kind) for kind in "ABA"
    ]
    monkeypatch.setattr(jax, "devices", lambda: devices)

    def engine():
        raise KeyError

    monkeypatch.setattr(eqx_fastjit, "engine", engine)
    assert cli.main(["--version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"eqx_fastjit {eqx_fastjit.__version__}"
    assert lines[3:8] == [
        *("equinox 7", "jax 3", "jaxlib not installed", "numpy 5", "jaxtyping 9")
    ]
    names = [line.split()[0] for line in lines[8:-5]]
    assert names == [name for name in _versions._OPTIONAL if name != "flax"]
    assert lines[-5:] == [
        *("EQX_A=1", "JAX_B=2", "XLA_FLAGS=x"),
        *("engine unknown (KeyError)", "devices 2 x gpu (A), 1 x gpu (B)"),
    ]
