"""Lines and fields of the log, for each kind of compilation."""

import io
import logging
import sys
import types

import pytest

from eqx_fastjit import _record
from eqx_fastjit._place import Place
from eqx_fastjit.doctor import _live
from eqx_fastjit.doctor._plain import Compile, Miss, PlainJits
from eqx_fastjit.doctor._sites import Line
from tests.doctor_records import array, HERE, node, static, trace_of


pytestmark = pytest.mark.one_engine

F = Line("a.py", 9, "f")


@pytest.fixture
def logged(caplog, monkeypatch):
    """The level, the line and the fields of what a function logs."""
    monkeypatch.setattr(_live, "user_line", lambda: HERE)

    def logged(log, what):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "eqx_fastjit"):
            log(what)
        return [
            (r.levelname, r.getMessage(), getattr(r, "compilation", None))
            for r in caplog.records
        ]

    return logged


# --- functions of ours ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "level", "line"),
    [
        ({}, "INFO", "compiled f (a.py:9) in 7 s (trace 1 s, lower 2 s, XLA 4 s), "
            "called at a.py:1: first call"),
        ({"seconds": (1.0, 0.0, 0.0, 8.0)}, "DEBUG", "traced f (a.py:9) in 1 s (trace "
            "1 s), called at a.py:1: first call"),
        ({"cached": True, "seconds": (0.0, 0.0, 4.0, 8.0)}, "INFO", "compiled f "
            "(a.py:9) in 4 s (XLA 4 s, read from the persistent cache), called at "
            "a.py:1: first call"),
        ({"ahead": True, "place": None}, "INFO", "compiled f ahead of time in 7 s "
            "(trace 1 s, lower 2 s, XLA 4 s), called at a.py:1: first call"),
        ({"failed": True, "seconds": (1.5, 0.0, 0.0, 0.0)}, "INFO", "tracing f (a.py:9)"
            " failed after 1.5 s, called at a.py:1"),
        ({"inside": 1}, "DEBUG", "compiled f (a.py:9) in 7 s (trace 1 s, lower 2 s, XLA"
            " 4 s), called at a.py:1, inside of another jitted function: first call"),
    ],
)  # fmt: skip
def test_a_trace(parts, level, line, logged):
    trace = trace_of(**parts)
    ((found, text, fields),) = logged(_live.log_trace, trace)
    assert (found, text) == (level, line)
    assert fields == {
        "name": "f" if "place" in parts else "f (a.py:9)",
        "cause": "failed" if trace.failed else "first-call",
        "leaf": "",
        "site": "a.py:1",
        "seconds": trace.trace + trace.lower + trace.compile,
    }


def test_a_trace_from_nowhere(logged, monkeypatch):
    monkeypatch.setattr(_live, "user_line", lambda: None)
    ((_, text, fields),) = logged(_live.log_trace, trace_of())
    assert ", called at ?: first call" in text and fields["site"] is None
    trace = trace_of(site=Place("c.py", 3, "g"))
    ((_, text, fields),) = logged(_live.log_trace, trace)
    assert ", called at c.py:3: first call" in text and fields["site"] == "c.py:3"


def test_a_partial_in_the_log(logged):
    func = static("f.func", "act (a.py:3)", "function")
    inner = static("f.func.func", "other (a.py:4)", "function")
    trace = trace_of(node("f", "P", 1), func, inner)
    ((_, text, fields),) = logged(_live.log_trace, trace)
    assert text.startswith("compiled f of act (a.py:3) in 7 s")
    assert fields["name"] == "f of act (a.py:3)"


def test_what_differs(logged):
    shape = [array("x", "(2,)"), array("y", "(2,)"), array("z", "(2,)"), array("w")]
    first = trace_of(*shape[:3], static("n", "1"))
    _record.traces.append(first)
    other = [array(name, "(3,)") for name in "xyz"]
    again = trace_of(*other, static("n", "2"))
    ((_, text, fields),) = logged(_live.log_trace, again)
    assert "compiled f (a.py:9) again in 7 s" in text
    # The main one first, and three of them.
    assert text.endswith(
        "called at a.py:1: static-churn: `n`: static 1 (int) -> 2 (int); `x`: shape "
        "(2,) -> (3,); `y`: shape (2,) -> (3,); and 1 more"
    )
    assert (fields["cause"], fields["leaf"]) == ("static-churn", "n")
    three = trace_of(*other[:2], shape[2], static("n", "2"))
    ((_, text, _),) = logged(_live.log_trace, three)
    assert text.endswith("; `y`: shape (2,) -> (3,)")
    same = trace_of(*shape[:3], static("n", "1"))
    ((_, text, fields),) = logged(_live.log_trace, same)
    assert text.endswith("called at a.py:1: cache-cleared") and fields["leaf"] == ""


def test_earlier_traces(monkeypatch):
    monkeypatch.setattr(_live, "_COMPARED", 2)

    def earlier_of(*traces):
        """The value of `n` in the earlier trace that was nearest."""
        new = trace_of(static("n", "9"))
        _record.traces.clear()
        _record.traces.extend([*traces, new])
        found = _live._explain(new)
        return found and found.differences[0].old

    one, two, three = (trace_of(static("n", str(n))) for n in (1, 2, 3))
    assert earlier_of() is None
    assert earlier_of(one, two) == "2 (int)"
    assert earlier_of(one, trace_of(failed=True)) == "1 (int)"
    assert earlier_of(one, trace_of(name="g"), trace_of(name="h")) == "1 (int)"
    # The latest two alone are compared.
    near = trace_of(static("n", "9"))
    others = [trace_of(static("n", "1"), static("m", "1")) for _ in range(2)]
    assert earlier_of(near, *others) == "1 (int)"
    assert earlier_of(three) == "3 (int)"


# --- everything else -----------------------------------------------------------------


def compile_of(miss=None, parts=(0.125, 0.125, 0.25), **options):
    return Compile("f", miss, options.pop("site", HERE), 900.0, "", *parts, **options)


@pytest.mark.parametrize(
    ("compiled", "level", "cause", "line"),
    [
        (compile_of(), "INFO", "outside-jit", "compiled f in 500 ms (trace 125 ms, "
            "lower 125 ms, XLA 250 ms), called at a.py:1: an operation outside of jit"),
        (compile_of(parts=(0, 0, 0.25), site=None), "DEBUG", "outside-jit", "compiled f"
            " in 250 ms (XLA 250 ms), called at ?: an operation outside of jit"),
        (compile_of(Miss("f", F, "first-call"), (0, 0, 0.25)), "INFO", "first-call",
            "compiled f (a.py:9) in 250 ms (XLA 250 ms), called at a.py:1, under "
            "jax.jit: first call"),
        (compile_of(Miss("f", None, "shape-churn", "x", "[2]", "[3]"), (0, 0, 0.25)),
            "INFO", "shape-churn", "compiled f (?) again in 250 ms (XLA 250 ms), called"
            " at a.py:1, under jax.jit: shape-churn: `x`: [2] -> [3]"),
        (compile_of(Miss("f", F, "other", "x", "", "[3]"), (0, 0, 0.25), cached=True),
            "INFO", "other", "compiled f (a.py:9) again in 250 ms (XLA 250 ms, read "
            "from the persistent cache), called at a.py:1, under jax.jit: other: `x`: "
            " -> [3]"),
        (compile_of(Miss("f", F, "config-churn"), (0, 0, 0.25)), "INFO", "config-churn",
            "compiled f (a.py:9) again in 250 ms (XLA 250 ms), called at a.py:1, under "
            "jax.jit: config-churn"),
    ],
)  # fmt: skip
def test_a_compilation(compiled, level, cause, line, logged):
    ((found, text, fields),) = logged(_live.log_compile, compiled)
    assert (found, text) == (level, line)
    site = None if compiled.site is None else "a.py:1"
    leaf = compiled.miss.leaf if compiled.miss else ""
    seconds = compiled.trace + compiled.lower + compiled.compile
    assert fields == {
        "name": "f",
        "cause": cause,
        "leaf": leaf,
        "site": site,
        "seconds": seconds,
    }


def test_what_is_ours_is_not_logged(logged, monkeypatch):
    ours = Line(_live.__file__, 1, "f")
    assert logged(_live.log_compile, compile_of(Miss("f", ours, "first-call"))) == []
    monkeypatch.setattr(_live, "_is_insight", lambda: True)
    assert logged(_live.log_compile, compile_of()) == []
    assert len(logged(_live.log_compile, compile_of(Miss("f", F, "other")))) == 1


def test_insight_at_work():
    assert not _live._is_insight()
    names = {"f": _live._is_insight}
    file = f"{_live._INSIGHT}_breakdown.py"
    exec(compile("def call(): return f()\nfound = call()", file, "exec"), names)
    assert names["found"] is True
    assert _live._INSIGHT.endswith("/eqx_fastjit/insight/")


@pytest.mark.parametrize("log", [_live.log_trace, _live.log_compile])
def test_what_cannot_be_described(log, logged):
    ((level, text, _),) = logged(log, None)
    assert level == "DEBUG"
    assert text.startswith("could not describe a compilation: AttributeError: 'NoneT")


# --- what takes long -----------------------------------------------------------------


def test_announcements(logged, monkeypatch):
    timers = []

    class Timer:
        daemon = False

        def __init__(self, seconds, announce):
            self.seconds, self.announce = seconds, announce
            timers.append(self)

        def start(self):
            assert self.daemon

        def cancel(self):
            timers.append("cancelled")

    monkeypatch.setattr(_live.threading, "Timer", Timer)
    trace = trace_of()
    begin = logged(lambda t: _live._on_begin(t, None), trace)
    assert begin == [("DEBUG", "tracing f (a.py:9), called at a.py:1", None)]
    for i, (seconds, text) in enumerate(((10, "10 s"), (10, "20 s"), (20, "40 s"))):
        assert timers[i].seconds == seconds
        said = logged(lambda t: t.announce(), timers[i])
        line = f"still compiling f (a.py:9) after {text}, called at a.py:1"
        assert said == [("INFO", line, None)]
    assert timers[3].seconds == 40
    _live._on_end(trace)
    assert timers[4:] == ["cancelled"] and _live._timers == {}
    # One that comes too late is the last.
    logged(lambda t: t.announce(), timers[3])
    assert len(timers) == 5
    _live._on_end(trace)
    monkeypatch.setattr(_live, "user_line", lambda: None)
    ((_, text, _),) = logged(lambda t: _live._on_begin(t, None), trace)
    assert text.endswith("called at ?")
    ((_, text, _),) = logged(lambda t: t.announce(), timers[-1])
    assert text.endswith("called at ?")
    _live._on_end(trace)


# --- to stderr -----------------------------------------------------------------------


@pytest.fixture
def fresh(monkeypatch):
    """A logger without handlers, and no hooks."""
    monkeypatch.setattr(_live.logger, "handlers", [])
    monkeypatch.setattr(_record, "before", [])
    monkeypatch.setattr(_record, "after", [])
    started = []
    monkeypatch.setattr(PlainJits, "start", lambda self: started.append(self))
    level = _live.logger.level
    yield started
    _live.logger.setLevel(level)


def test_logging_as_the_environment_says(fresh, monkeypatch):
    for text in ("", "off", "0"):
        monkeypatch.setenv("EQX_FASTJIT_LOG", text)
        _live.log_from_environment()
    monkeypatch.delenv("EQX_FASTJIT_LOG")
    _live.log_from_environment()
    assert fresh == _live.logger.handlers == _record.before == _record.after == []
    monkeypatch.setenv("EQX_FASTJIT_LOG", "compiles")
    _live.log_from_environment()
    (plain,) = fresh
    assert not plain.keep and plain.on_compile is _live.log_compile
    assert _live.logger.level == logging.INFO
    assert (_record.before, _record.after) == ([_live._on_begin], [_live._on_end])
    monkeypatch.setenv("EQX_FASTJIT_LOG", "all")
    _live.log_from_environment()  # it was started already
    assert _live.logger.level == logging.INFO and len(fresh) == 1
    (handler,) = _live.logger.handlers
    record = logging.LogRecord("eqx_fastjit", 20, "", 1, "text", None, None)
    record.created = 0.0
    end = "eqx_fastjit] text"
    assert handler.format(record).endswith(f" {end}")
    assert len(handler.format(record)) == len(f"[00:00:00 {end}")
    _live.logger.handlers = []
    other = PlainJits()
    monkeypatch.setattr(PlainJits, "started", other)
    _live.log_from_environment()
    assert _live.logger.level == logging.DEBUG
    assert len(fresh) == 1 and other.on_compile is _live.log_compile


def test_a_program_with_a_handler_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    handler = _live._Stderr()

    def printed(level=20):
        sys.stderr.seek(0)
        sys.stderr.truncate()
        handler.emit(logging.LogRecord("eqx_fastjit", level, "", 1, "a", None, None))
        return sys.stderr.getvalue()

    assert printed() == "a\n"
    root.handlers.append(types.SimpleNamespace(level=30))
    assert printed() == "a\n" and printed(30) == ""
    root.handlers[0].level = 20
    assert printed() == ""
    monkeypatch.setattr(_live.logger, "propagate", False)
    assert printed() == "a\n"
    errors = []
    monkeypatch.setattr(handler, "handleError", errors.append)
    monkeypatch.setattr(handler, "format", lambda record: 1 / 0)
    assert printed() == "" and len(errors) == 1
