"""`lock`, `doctor`, `profile`, `export` and `show` in this process."""

import io
import json
import os
import sys
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _record, cli
from eqx_fastjit.cli import (
    _doctor,
    _export,
    _lock,
    _profile,
    _script,
    _signals,
)
from eqx_fastjit.cli._common import CommandError
from eqx_fastjit.cli._script import Program
from eqx_fastjit.doctor import _lock as _lock_file
from eqx_fastjit.doctor._report import KINDS
from eqx_fastjit.insight import _samples


pytestmark = [pytest.mark.one_engine, pytest.mark.usefixtures("kept_excepthook")]


# --- lock -----------------------------------------------------------------------------


def signature(n):
    return {"arrays": {"x": f"float32[{n}]"}}


def trace(compile=1.0):
    return types.SimpleNamespace(compile=compile)


@pytest.fixture
def locked(program, monkeypatch):
    """`eqx-fastjit lock` of a program whose calls are given."""
    state = types.SimpleNamespace(seen=[], code=0, recorders=[])

    def run_watched(program, recorder):
        state.recorders.append(recorder)
        try:
            for name, n in state.seen:
                found = signature(n)
                key = (name, _lock_file.key_of(found))
                recorder.seen.setdefault(key, (found, f"{name}:{n}"))
                if recorder.on_signature is not None:
                    recorder.on_signature(name, found, trace())
        except SystemExit as e:
            return e.code
        return state.code

    monkeypatch.setattr(_script, "run_watched", run_watched)
    monkeypatch.setattr(cli, "was_interrupted", lambda code: code == 130)
    return state


def test_lock_writes_and_checks(locked, program, capsys):
    locked.seen = [("f", 1), ("f", 2), ("g", 1), ("f", 1)]
    assert cli.main(["lock", "a.py"]) == 0
    assert capsys.readouterr().err == (
        "eqx-fastjit lock: wrote 3 signatures of 2 functions to fastjit.lock\n"
    )
    assert locked.recorders[-1].folder == str(program)
    assert cli.main(["lock", "--check", "a.py"]) == 0
    assert capsys.readouterr().err == (
        "eqx-fastjit lock: 3 signatures used, 0 not in fastjit.lock\n"
    )
    locked.seen = [("f", 1), ("h", 1)]
    assert cli.main(["lock", "--check", "a.py"]) == 1
    assert capsys.readouterr().err == (
        "h: not in the file; called at h:1\n"
        "eqx-fastjit lock: 2 signatures used, 1 not in fastjit.lock; 2 in it not used\n"
    )
    locked.seen = [("f", 1), ("h", 1), ("h", 2)]
    with pytest.MonkeyPatch.context() as patch:  # as if at one line
        patch.setattr(_lock_file, "explain_unknown", lambda name, *_: [f"{name}: new"])
        assert cli.main(["lock", "--check", "a.py"]) == 1
    assert capsys.readouterr().err.startswith("2 signatures: h: new\neqx-fastjit lock")
    locked.seen = [("f", 1), ("h", 1)]
    locked.code = 5
    assert cli.main(["lock", "--check", "a.py"]) == 5
    assert cli.main(["lock", "-o", "x", "a.py"]) == 5
    assert capsys.readouterr().err.endswith(
        "saw 2 signatures of 2 functions; not written, as the program ended with exit "
        "code 5\n"
    )
    assert not (program / "x").exists()
    locked.code, locked.seen = 0, [("f", 1)]
    assert cli.main(["lock", "-o", "x", "-m", "a"]) == 0
    assert capsys.readouterr().err == (
        "eqx-fastjit lock: wrote 1 signature of 1 function to x\n"
    )
    assert locked.recorders[-1].folder == os.getcwd()
    locked.code = 130
    with pytest.raises(KeyboardInterrupt):
        cli.main(["lock", "-o", "x", "a.py"])


@pytest.fixture
def cache(monkeypatch):
    """The settings of JAX's persistent cache; they are restored."""
    for name in ("DIR", "MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        name = f"JAX_{'' if name == 'DIR' else 'PERSISTENT_'}CACHE_{name}"
        monkeypatch.setenv(name.replace("JAX_CACHE", "JAX_COMPILATION_CACHE"), "")
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", "the folder")
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_lock_precompiles(locked, cache, capsys):
    locked.seen = [("f", 1), ("f", 2), ("g", 1)]
    cli.main(["lock", "a.py"])
    capsys.readouterr()
    command = ["lock", "--precompile", "a.py"]
    locked.seen = [("f", 2), ("other", 1), ("f", 2), ("g", 1), ("f", 1), ("f", 3)]
    assert cli.main(command) == 0
    assert capsys.readouterr().err == (
        "[1/3] f\n[2/3] g\n[3/3] f\n"
        "eqx-fastjit lock: 3 compiled now, 0 in the cache before, 0 not reached\n"
        "eqx-fastjit lock: run it with JAX_COMPILATION_CACHE_DIR=the folder "
        "eqx-fastjit run\n"
    )
    assert len(locked.recorders[-1].seen) == 4  # ended after the last one
    locked.seen = [("f", 1)]
    assert cli.main(command) == 1
    assert capsys.readouterr().err.endswith(
        "1 compiled now, 0 in the cache before, 2 not reached\n"
        "eqx-fastjit lock: run it with JAX_COMPILATION_CACHE_DIR=the folder "
        "eqx-fastjit run\n"
        "not reached: f\nnot reached: g\n"
    )
    locked.code = 4
    assert cli.main(command) == 4
    assert "not reached: f" not in capsys.readouterr().err
    locked.code, locked.seen = 0, []
    assert cli.main(command) == 1  # JAX was not imported, so no folder is known
    assert "run it with" not in capsys.readouterr().err
    cli.main(["lock", "a.py"])
    capsys.readouterr()
    assert cli.main(command) == 0
    assert (
        capsys.readouterr().err == "eqx-fastjit lock: no signatures in fastjit.lock\n"
    )
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    assert os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] == "-1"


def test_files_that_are_no_lock_files(locked, program, capsys):
    for content, message in (
        (None, "cannot read 'x.lock': No such file or directory"),
        (b"\xff", "'x.lock' is not a lock file: 'utf-8' codec can't decode byte 0xff "),
        (b"{", "'x.lock' is not a lock file: not JSON"),
    ):
        if content is not None:
            (program / "x.lock").write_bytes(content)
        for mode in ("--check", "--precompile"):
            assert cli.main(["lock", mode, "-o", "x.lock", "a.py"]) == 2
            assert capsys.readouterr().err.startswith(f"eqx-fastjit: {message}")
    assert locked.recorders == []


def test_hits_of_the_cache(cache, monkeypatch):
    known = {("f", _lock_file.key_of(signature(n))) for n in range(3)}
    ticked, heard = [], []
    compiling = _lock._Precompiling(known, ticked.append)
    monkeypatch.setattr(jax.monitoring, "register_event_listener", heard.append)
    compiling.on_jax()
    (listener,) = heard
    busy = [True]
    monkeypatch.setattr(_record, "is_busy", lambda: busy[0])
    listener("/jax/compilation_cache/cache_misses")
    assert compiling.hits == 0
    listener("/jax/compilation_cache/cache_hits", more=1)
    listener("/jax/compilation_cache/cache_hits")
    busy[0] = False
    listener("/jax/compilation_cache/cache_hits")
    assert compiling.hits == 2
    compiling("f", signature(0), trace(compile=0))  # only lowered
    assert (compiling.hits, ticked) == (2, [])
    compiling("f", signature(0), trace())
    assert (compiling.from_cache, compiling.compiled, compiling.hits) == (1, 0, 0)
    compiling("f", signature(1), trace())
    assert (compiling.from_cache, compiling.compiled) == (1, 1)
    compiling.hits = 1
    compiling("f", signature(1), trace())  # again, for another reason
    assert (compiling.from_cache, compiling.compiled, compiling.hits) == (1, 1, 0)
    with pytest.raises(SystemExit) as e:
        compiling("f", signature(2), trace())
    assert e.value.code == 0 and ticked == ["f"] * 3
    assert compiling.directory == "the folder"
    jax.config.update("jax_compilation_cache_dir", None)
    compiling = _lock._Precompiling(known, ticked.append)
    with pytest.raises(SystemExit) as e:
        compiling("f", signature(2), trace())
    assert e.value.code == 2 and compiling.directory == "" and len(compiling.todo) == 3


def test_lock_needs_a_cache(locked, cache, capsys):
    locked.seen = [("f", 1)]
    cli.main(["lock", "a.py"])
    capsys.readouterr()
    jax.config.update("jax_compilation_cache_dir", None)
    assert cli.main(["lock", "--precompile", "a.py"]) == 2
    assert capsys.readouterr().err == (
        "eqx-fastjit: --precompile: no cache directory; give --cache-dir DIR or set "
        "JAX_COMPILATION_CACHE_DIR\n"
    )


def test_the_folder_of_the_cache(cache, program, monkeypatch):
    _lock._set_cache(None)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == ""
    _lock._set_cache("a/b")
    _lock._set_cache("a/b")
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(program / "a" / "b")
    assert (program / "a" / "b").is_dir()
    with pytest.raises(CommandError) as e:
        _lock._set_cache("a.py/b")
    assert str(e.value) == "--cache-dir: cannot make 'a.py/b': Not a directory"
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(CommandError) as e:
        _lock._set_cache("a/b")
    assert str(e.value) == "--cache-dir: cannot write to 'a/b'"


def test_progress_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    import rich.progress

    updates = []

    class Bar(rich.progress.Progress):
        def __init__(self, console, **kwargs):
            assert console.file is sys.stderr
            assert kwargs == {"redirect_stdout": False, "redirect_stderr": False}
            super().__init__(console=console, **kwargs)

        def update(self, task, **kwargs):
            super().update(task, **kwargs)
            (task,) = self.tasks
            updates.append((task.completed, task.total, task.description))

    monkeypatch.setattr(rich.progress, "Progress", Bar)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with _lock._progress(3) as advance:
        advance("f")
        advance("g")
    assert updates == [(1, 3, "f"), (2, 3, "g")]
    assert "[1/3]" not in sys.stderr.getvalue()
    # Without rich, as without a terminal.
    monkeypatch.setitem(sys.modules, "rich.console", None)
    monkeypatch.setattr(sys, "stderr", Terminal())
    with _lock._progress(3) as advance:
        advance("f")
        advance("g")
    assert sys.stderr.getvalue() == "[1/3] f\n[2/3] g\n"


# --- doctor ---------------------------------------------------------------------------


def test_kinds_to_fail_on():
    kinds = _doctor._kinds
    assert kinds("") == kinds(" ,") == set()
    assert kinds("blocking, shape-churn") == {"blocking", "shape-churn"}
    assert kinds("any") == kinds("blocking,any") == set(KINDS)
    with pytest.raises(CommandError) as e:
        kinds("blocking,b,a")
    assert str(e.value) == (
        f"--fail-on: no kind 'a'; expected one of any, {', '.join(KINDS)}"
    )


@pytest.fixture
def examined(program, monkeypatch):
    """`eqx-fastjit doctor` of a program with some findings."""
    state = types.SimpleNamespace(log=[], code=0, kinds=["blocking"], pid=os.getpid())

    class Reporter:
        def __init__(self, write, interim):
            state.log.append(("interim", interim))
            self.write = write

        def start(self):
            state.log.append("start")

        def stop(self):
            state.log.append("stop")

    def run_watched(program, watch, **_):
        state.log.append(("run", program, watch))
        monkeypatch.setattr(os, "getpid", lambda: state.pid)
        return state.code

    def make_report(watch, name, code, slow):
        state.log.append(("report", watch, name, code, slow))
        findings = [types.SimpleNamespace(kind=kind) for kind in state.kinds]
        return types.SimpleNamespace(
            findings=findings, as_json=lambda: {"kinds": state.kinds}
        )

    monkeypatch.setattr(_signals, "Reporter", Reporter)
    monkeypatch.setattr(_script, "run_watched", run_watched)
    monkeypatch.setattr(
        "eqx_fastjit.doctor._watch.Watch", lambda **kwargs: tuple(kwargs.items())
    )
    monkeypatch.setattr("eqx_fastjit.doctor._find.make_report", make_report)
    monkeypatch.setattr(
        "eqx_fastjit.doctor._text.write_text",
        lambda report, file: file.write("the report\n"),
    )
    monkeypatch.setattr("eqx_fastjit.doctor._page.page", lambda report: "the page")
    monkeypatch.setattr(
        "eqx_fastjit.doctor._timeline.timeline", lambda watch, report: [watch]
    )
    monkeypatch.setattr(cli, "was_interrupted", lambda code: code == 130)
    return state


def test_doctor(examined, program, capsys):
    argv = ["--json", "a.json", "--html", "a.html", "--trace", "a.trace", "--slow", "0"]
    argv += ["--interim", "now", "--numerics", "a.py", "--fail-on", "blocking", "x"]
    assert cli.main(["doctor", *argv]) == 1
    watch = (("numerics", True), ("programs", False))
    assert examined.log == [
        ("interim", str(program / "now")),
        "start",
        ("run", Program("a.py", ("x",), False), watch),
        ("report", watch, "a.py", 0, 0.0),
        "stop",
    ]
    assert (program / "a.json").read_text() == (
        '{\n  "kinds": [\n    "blocking"\n  ]\n}\n'
    )
    assert (program / "a.html").read_text() == "the page"
    assert json.loads((program / "a.trace").read_text()) == [
        [["numerics", True], ["programs", False]]
    ]
    assert capsys.readouterr().err == "the report\n"


def test_a_report_without_a_number_is_no_json(examined):
    examined.kinds = [float("nan")]
    with pytest.raises(ValueError, match="not JSON compliant"):
        cli.main(["doctor", "--json", "x", "a.py"])


@pytest.mark.parametrize(
    ("argv", "code", "returned"),
    [
        ([], 0, 0),
        (["--fail-on", "shape-churn"], 0, 0),
        (["--fail-on", "shape-churn,blocking"], 0, 1),
        (["--fail-on", "any"], 7, 7),
        ([], 7, 7),
    ],
)
def test_exit_codes_of_doctor(argv, code, returned, examined):
    examined.code = code
    assert cli.main(["doctor", *argv, "--programs", "a.py"]) == returned
    assert examined.log[0] == ("interim", None)
    assert examined.log[2][2] == (("numerics", False), ("programs", True))


def test_doctor_in_a_process_that_the_program_forked(examined, program):
    examined.pid, examined.code = -1, 3
    assert cli.main(["doctor", "--fail-on", "any", "--json", "x", "a.py"]) == 3
    assert examined.log[-1] == "stop" and not (program / "x").exists()


def test_doctor_that_is_interrupted(examined, capsys):
    examined.code = 130
    with pytest.raises(KeyboardInterrupt):
        cli.main(["doctor", "a.py"])
    assert capsys.readouterr().err == "the report\n" and examined.log[-1] == "stop"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--slow", "-1"], "--slow -1.0: expected 0 or more"),
        (["--slow", "nan"], "--slow nan: expected 0 or more"),
        (["--trace", "no/a"], "--trace: cannot write"),
        (["--html", "no/a"], "--html: cannot write"),
    ],
)
def test_bad_options_of_doctor(argv, message, examined, capsys):
    assert cli.main(["doctor", *argv, "a.py"]) == 2
    assert message in capsys.readouterr().err and examined.log == []


# --- profile --------------------------------------------------------------------------


@pytest.fixture
def profiled(program, monkeypatch):
    """Functions that `profile` is called with."""
    seen = []

    def profile(fun, *args, n, **kwargs):
        seen.append((fun, args, kwargs, n))
        return types.SimpleNamespace(full_text=lambda: f"profile {len(seen)}")

    monkeypatch.setattr("eqx_fastjit.insight.profile", profile)
    monkeypatch.setattr(
        "eqx_fastjit.insight._profile.html_page", lambda found: f"{len(found)} parts"
    )
    return seen


def watched(*calls):
    def signatures(n, i):
        return [_samples.Signature(n, f"fun{i}", (i,), {"k": i})] if n else []

    called = [
        _samples.Called(
            f"f{i}", None, None, n, signatures=dict(enumerate(signatures(m, i)))
        )
        for i, (n, m) in enumerate(calls)
    ]
    watched = _profile._Watched()
    watched.samples = types.SimpleNamespace(
        ranked=lambda: called, called=called, stop=lambda: None
    )
    return watched


@pytest.mark.parametrize(
    ("functions", "names"), [(1, [1]), (2, [1, 2]), (9, [1, 2, 3])]
)
def test_functions_that_are_profiled(functions, names, profiled, capsys, tmp_path):
    # The one that was called most was never called with arguments of its own.
    it = watched((900, 0), (50, 3), (20, 3), (1, 1))
    page = tmp_path / "page"
    it.report(functions, 7, page)
    assert profiled == [(f"fun{i}", (i,), {"k": i}, 7) for i in names]
    out = capsys.readouterr().out
    assert out == (
        "Calls of jitted functions so far:\n       900  f0\n        50  f1\n"
        "        20  f2\n         1  f3\n"
        + "".join(f"\nprofile {i}\n" for i in range(1, len(names) + 1))
    )
    assert page.read_text() == f"{len(names)} parts"


def test_functions_that_raise_when_they_are_profiled(profiled, capsys, monkeypatch):
    def profile(fun, *args, n, **kwargs):
        if fun == "fun0":
            raise ValueError("of the user's")
        return types.SimpleNamespace(full_text=lambda: fun)

    monkeypatch.setattr("eqx_fastjit.insight.profile", profile)
    watched((3, 3), (2, 2)).report(2, None, None)
    assert capsys.readouterr().out.endswith(
        "\nf0 raised ValueError when called again\n\nfun1\n"
    )


def test_a_program_without_calls(profiled, capsys):
    for it in (_profile._Watched(), watched()):
        it.report(1, None, None)
        assert capsys.readouterr().out == (
            "eqx-fastjit: the program called no function under equinox.filter_jit\n"
        )
        assert it.counts() == "Calls of jitted functions so far:\n  none"


def test_profile(program, monkeypatch, capsys):
    done = []

    def run_script(*args):
        os.chdir("/")
        return done.append(args) or 9

    monkeypatch.setattr(_profile, "install_on_import", lambda then: done.append(then))
    monkeypatch.setattr(_profile, "run_script", run_script)
    monkeypatch.setattr(_profile, "was_interrupted", lambda code: False)
    monkeypatch.setattr(_profile._Watched, "report", lambda self, *a: done.append(a))
    argv = ["profile", "--html", "p", "--calls", "1", "--functions", "2", "a.py", "x"]
    assert cli.main(argv) == 9
    assert done[0].__name__ == "begin"
    assert done[1:] == [("a.py", ("x",), False), (2, 1, program / "p")]
    os.chdir(program)
    monkeypatch.setattr(_profile, "was_interrupted", lambda code: code == 9)
    monkeypatch.setattr(cli, "was_interrupted", lambda code: code == 9)
    with pytest.raises(KeyboardInterrupt):
        cli.main(["profile", "a.py"])
    assert capsys.readouterr().out == "Calls of jitted functions so far:\n  none\n"
    assert len(done) == 5
    os.chdir(program)
    for argv, message in (
        (["--calls", "0"], "--calls 0: expected at least 1"),
        (["--functions", "0"], "--functions 0: expected at least 1"),
    ):
        assert cli.main(["profile", *argv, "a.py"]) == 2
        assert capsys.readouterr().err == f"eqx-fastjit: {message}\n"
    asked = []
    monkeypatch.setattr(_profile, "need", asked.append)
    cli.main(["profile", "--calls", "0", "a.py"])
    assert asked == ["pyinstrument"]


# --- export and show ------------------------------------------------------------------


def test_what_is_exported(program, monkeypatch, capsys):
    monkeypatch.syspath_prepend("nowhere")
    before = list(sys.path)
    given = {}

    class Function(eqx.Module):
        def __call__(self):
            pass

        def export(self, *args, **kwargs):
            given["arguments"] = args, kwargs
            return self

        def save(self, path, **options):
            given["save"] = path, options
            with open(path, "wb") as file:
                file.write(bytes(2048))

    module = types.SimpleNamespace(f=Function(), a=lambda: [1, 2], k=lambda: {"x": 3})
    monkeypatch.setitem(sys.modules, "m", module)
    monkeypatch.setattr(_export, "_wrapped", lambda function: function)
    argv = ["export", "m:f", "--args", "m:a", "-o", "out"]
    assert cli.main(argv) == 0
    assert given == {
        "arguments": ((1, 2), {}),
        "save": (
            str(program / "out"),
            {"portable": True, "compiled": False, "platforms": None, "vjp_order": 0},
        ),
    }
    assert sys.path == [str(program), *before]
    assert capsys.readouterr().out == "wrote out (2.0 KiB)\n"
    argv[3] = "m:k"
    more = [
        "--platforms",
        "cpu,cuda",
        "--compiled",
        "--no-portable",
        "--vjp-order",
        "2",
    ]
    assert cli.main([*argv, *more]) == 0
    assert given["arguments"] == ((), {"x": 3})
    assert given["save"][1] == {
        "portable": False,
        "compiled": True,
        "platforms": ["cpu", "cuda"],
        "vjp_order": 2,
    }


def test_what_is_named(monkeypatch):
    inner = types.SimpleNamespace(g=5)
    monkeypatch.setitem(sys.modules, "m", types.SimpleNamespace(f=inner))
    assert _export._find("m:f.g") == 5
    for text, message in (
        ("m", "'m': expected MODULE:NAME"),
        (":f", "':f': expected MODULE:NAME"),
        ("m:", "'m:': expected MODULE:NAME"),
        ("m:f.h.g", "'m:f.h.g': no 'h' there"),
        ("no_such:f", "'no_such:f': No module named 'no_such'"),
    ):
        with pytest.raises(CommandError) as e:
            _export._find(text)
        assert str(e.value) == message


def test_what_is_wrapped():
    def f(x):
        return x

    ours = eqx_fastjit.filter_jit(f)
    assert _export._wrapped(ours) is ours
    assert isinstance(_export._wrapped(f), eqx_fastjit.JitWrapped)
    x = jnp.ones(2)
    _export._wrapped(eqx.filter_jit(lambda x: x + 1, donate="all"))(x)
    assert x.is_deleted()
    with pytest.raises(CommandError, match=r"^3 cannot be called$"):
        _export._wrapped(3)
    assert _export._split([1], "") == ((1,), {})
    with pytest.raises(CommandError) as e:
        _export._split({1}, "m:a")
    assert str(e.value) == (
        "--args m:a returned `set`; expected a tuple of arguments, or a dictionary of "
        "keyword arguments"
    )


def test_show(monkeypatch, capsys):
    def show(file, everything):
        if file == "gone":
            raise FileNotFoundError(2, "No such file")
        if file == "bad":
            raise ValueError("not a file of ours")
        return f"{file} {everything}"

    monkeypatch.setattr("eqx_fastjit._export._show.show", show)
    assert cli.main(["show", "a"]) == 0 and cli.main(["show", "a", "--all"]) == 0
    assert capsys.readouterr().out == "a False\na True\n"
    assert cli.main(["show", "gone"]) == 2 and cli.main(["show", "bad"]) == 2
    assert capsys.readouterr().err == (
        "eqx-fastjit: cannot read 'gone': No such file\n"
        "eqx-fastjit: not a file of ours\n"
    )
