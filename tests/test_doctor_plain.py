"""What the doctor learns about functions under plain `jax.jit` from JAX's events and
log.
"""

import logging
import threading

import jax
import pytest

from eqx_fastjit.doctor import _plain
from tests.clock import Clock, COMPILED, LOWERED, TRACED


pytestmark = pytest.mark.one_engine


TYPES = (
    "TRACING CACHE MISS at a.py:1 (m):\n  for {name} defined at a.py:9\n"
    "  Tracing context doesn't match, e.g. due to config or context manager."
)
NEVER = (
    "TRACING CACHE MISS at a.py:1 (m):\n"
    "  never seen function:\n    {name} id=1 defined at a.py:9"
)
HIT = "/jax/compilation_cache/cache_hits"


def compile_one(plain, name="f"):
    """Send the events of one compilation; returns what was recorded."""
    before = len(plain.compiles)
    for event in (TRACED, LOWERED, COMPILED):
        plain._on_duration(event, 1.0, fun_name=f"jit({name})")
    return plain.compiles[before:]


def test_an_explanation_belongs_to_the_compilation_that_follows():
    plain = _plain.PlainJits()
    plain.explain(TYPES.format(name="f"))
    (f,) = compile_one(plain)
    assert f.miss.kind == "config-churn"
    (again,) = compile_one(plain)
    assert again.miss is None


def test_what_is_explained_within_another_trace_does_not_count():
    plain = _plain.PlainJits()
    for name in ("outer", "inner"):
        plain.explain(TYPES.format(name=name))
    (outer,) = compile_one(plain, "outer")
    assert outer.miss.name == "outer"
    (inner,) = compile_one(plain, "inner")
    assert inner.miss is None


def test_a_first_call_of_the_same_line_is_one_of_a_fresh_function():
    plain = _plain.PlainJits()
    kinds = []
    for name in ("f", "f", "g"):
        plain.explain(NEVER.format(name=name))
        kinds += [c.miss.kind for c in compile_one(plain, name)]
    assert kinds == ["first-call", "fresh-function", "first-call"]


def test_nothing_is_heard_while_paused():
    plain = _plain.PlainJits()
    plain.paused = True
    plain.explain(TYPES.format(name="f"))
    plain._on_event(HIT)
    assert compile_one(plain) == [] and plain.seconds == 0
    plain.paused = False
    (f,) = compile_one(plain)
    assert f.miss is None and not f.cached


def test_of_ours_only_the_seconds_count(monkeypatch):
    plain = _plain.PlainJits()
    with monkeypatch.context() as patch:
        patch.setattr(_plain, "_is_ours", lambda: True)
        plain.explain(TYPES.format(name="f"))
        plain._on_event(HIT)
        assert compile_one(plain) == [] and plain.seconds == 2
    (f,) = compile_one(plain)
    assert f.miss is None and not f.cached


def test_programs_from_the_persistent_cache():
    plain = _plain.PlainJits()
    plain._on_event("/jax/compilation_cache/cache_misses")
    assert not compile_one(plain)[0].cached
    plain._on_event(HIT)
    assert compile_one(plain)[0].cached
    assert not compile_one(plain)[0].cached


def test_compilations_are_kept_or_handed_on():
    plain = _plain.PlainJits(keep=False)
    seen = []
    plain.on_compile = seen.append
    assert compile_one(plain) == [] and [c.name for c in seen] == ["f"]


def test_explanations_of_what_is_never_compiled_do_not_pile_up():
    plain = _plain.PlainJits()
    for i in range(_plain._MAX_PENDING + 10):
        plain.explain(TYPES.format(name=f"f{i}"))
    names = [miss.name for miss in plain._pending.misses]
    assert len(names) == _plain._MAX_PENDING + 1
    assert names[-1] == f"f{_plain._MAX_PENDING + 9}"


@pytest.mark.parametrize("printing", [False, True])
def test_explanations_are_printed_if_the_program_asked_for_them(printing):
    name = "jax_explain_cache_misses"
    jax.config.update(name, printing)
    plain = _plain.PlainJits()
    try:
        plain.start()
        assert plain.explained and getattr(jax.config, name)
        text = TYPES.format(name="f")
        record = logging.LogRecord("jax", 30, "", 1, text, None, None)
        assert plain._filter.filter(record) == printing
        assert compile_one(plain)[0].miss is not None
        # Other log records are printed.
        other = logging.LogRecord("jax", 30, "", 1, "Compiling f", None, None)
        assert plain._filter.filter(other)
        plain.stop()
        assert getattr(jax.config, name) == printing
        assert all(plain._filter not in x.filters for x in plain._loggers)
    finally:
        plain.paused = True
        jax.config.update(name, False)


# --- compilations --------------------------------------------------------------------


def test_a_compilation(monkeypatch):
    monkeypatch.setattr(_plain, "time", Clock())
    plain = _plain.PlainJits()
    plain.explain(TYPES.format(name="f"))
    (f,), (sin,) = compile_one(plain), compile_one(plain, "sin")
    assert (f.name, f.miss.name, sin.miss) == ("f", "f", None)
    assert f.site.file == __file__ and f.expression.startswith("plain._on_duration(")
    assert f.stack[:1] == (f.site,) and len(f.stack) > 1
    # What has no explanation is looked for from the outside.
    assert sin.stack == () and sin.site == f.site
    monkeypatch.setattr(_plain, "outermost_frame", lambda: None)
    (cos,) = compile_one(plain, "cos")
    assert (cos.site, cos.expression) == (None, "")
    assert f.thread == sin.thread == threading.get_ident()
    assert (f.seconds, f.started, f.cached) == (3, 997, False)


def test_what_was_traced_before_is_not_part_of_it():
    plain = _plain.PlainJits()
    plain._on_duration(TRACED, 2.0, fun_name="g")
    plain._on_duration(TRACED, 4.0, fun_name="f")
    plain._on_duration("/jax/something_else", 8.0, fun_name="f")
    plain._on_duration(COMPILED, 16.0, fun_name="jit_f")
    plain._on_duration(COMPILED, 32.0, fun_name="pjit(g)")
    plain._on_duration(COMPILED, 64.0)
    found = [(c.name, c.trace, c.lower, c.compile) for c in plain.compiles]
    assert found == [("f", 4, 0, 16), ("g", 0, 0, 32), ("?", 0, 0, 64)]
    assert plain.seconds == 16 + 32 + 64


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *[("jit(f)", "f"), ("pjit(f)", "f"), ("jit_f", "f"), ("f", "f")],
        *[("jit(<lambda>)", "<lambda>"), ("my_jit_f", "my_jit_f"), ("jit(f) x",) * 2],
    ],
)
def test_names_of_functions(name, expected):
    assert _plain._bare(name) == expected


# --- explanations --------------------------------------------------------------------


def explained(*lines, name="f"):
    text = f"TRACING CACHE MISS at a.py:1 (m):\n  for {name} defined at a b.py:19\n"
    return _plain.parse(text + "\n".join(lines))


def test_a_first_call_and_others():
    miss = explained("  never seen function:")
    assert miss == _plain.Miss("f", ("a b.py", 19, "f"), "first-call")
    assert explained("  nobody knows why").kind == "other"
    assert explained("  * at x, in other words").kind == "other"
    assert _plain.parse(NEVER.format(name="f")[1:]) is None
    assert _plain.parse("TRACING CACHE MISS:\n  f defined at a.py") is None


@pytest.mark.parametrize(
    ("new", "old", "expected"),
    [
        ("i32[3]", "f32[3]", ("dtype-churn", "f32", "i32")),
        ("i32[4]", "f32[3]", ("dtype-churn", "f32", "i32")),
        ("f32[4]", "f32[3]", ("shape-churn", "[3]", "[4]")),
        ("f32[2,3]", "f32[]", ("shape-churn", "[]", "[2,3]")),
        ("f32[]{weak_type=True}", "f32[]", ("weak-type", "strong", "weak")),
        ("f32[]({})", "f32[]({}){weak_type=True}", ("weak-type", "weak", "strong")),
        ("f32[3]({x: 2})", "f32[3]({})", ("sharding-churn", "", "")),
        ("key<fry>[]", "u32[2]", ("dtype-churn", "u32", "key<fry>")),
        ("key<fry>[3]", "key<fry>[]", ("shape-churn", "[]", "[3]")),
        ("bf16", "f32", ("dtype-churn", "f32", "bf16")),
        ("?", "f32", ("dtype-churn", "f32", "?")),
    ],
)
def test_arrays_that_differ(new, old, expected):
    miss = explained("  different types:", f"  * at x['a'], now {new} and before {old}")
    assert (miss.kind, miss.old, miss.new) == expected
    assert miss.leaf == "x['a']" and miss.name == "f" and miss.place.line == 19
    assert miss.dtype == new.partition("[")[0]


STATIC = "<class 'S'> with pytree metadata Static(val={})"


@pytest.mark.parametrize(
    ("path", "leaf"),
    [
        ("[0][1]", "argument 1"),
        ("[0][0].a['b']", "argument 0.a['b']"),
        ("[1]['n']", "n"),
        ("[1]['n'][2]", "n[2]"),
        ("[0]", "arguments"),
        ("[2][1]", "arguments"),
        ("", "arguments"),
    ],
)
def test_statics_that_differ(path, leaf):
    new, old = STATIC.format("2"), STATIC.format("'a'")
    line = f"  * at input path {path}, now {new} and before {old}, so it differs"
    miss = explained(line)
    assert (miss.kind, miss.leaf) == ("static-churn", leaf)
    assert (miss.old, miss.new, miss.dtype) == ("'a' (str)", "2 (int)", "")
    line = f"  * at input path {path}, now a tuple and before a list, so it differs"
    miss = explained(line)
    assert (miss.kind, miss.leaf) == ("structure-churn", leaf)
    assert (miss.old, miss.new) == ("another value",) * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", "1 (int)"),
        ("-2.5e-05", "-2.5e-05 (float)"),
        ("1j", "1j (complex)"),
        ("True", "True (bool)"),
        ("None", "None (NoneType)"),
        ("'a'", "'a' (str)"),
        (f"'{30 * 'a'}'", f"'{30 * 'a'}' (str)"),
        (f"'{31 * 'a'}'", "another value"),
        ("1" * 20, f"{'1' * 20} (int)"),
        ("1" * 21, "another value"),
        ("inf", "another value"),
        ("1.2.3", "another value"),
        ("(1, 2)", "another value"),
    ],
)
def test_statics_in_words(text, expected):
    assert _plain._static(f"Static(val={text})") == expected
    assert _plain._static(text) == "another value"


def test_what_jax_logs_beside_its_explanations():
    plain = _plain.PlainJits()

    def passes(text, level=logging.WARNING):
        record = logging.LogRecord("jax", level, "", 1, text, None, None)
        return plain._filter.filter(record)

    for text in _plain._OF_THE_CACHE:
        for printing in (False, True):
            plain._filter.printing = printing
            assert passes(text) is printing
            assert passes(text, logging.INFO)
    plain._filter.printing = plain.explained = True
    assert passes("TRACING CACHE MISS in other words") and plain.explained
    plain.explain = lambda text: 1 / 0
    assert passes("another one") and plain.explained
    assert passes("TRACING CACHE MISS") and not plain.explained


def test_one_alone_takes_explanations_in():
    plain = _plain.PlainJits()
    assert not plain.explained and _plain.PlainJits.started is None
    assert plain.keep and not plain.paused and plain.seconds == 0
    plain.start()
    try:
        assert _plain.PlainJits.started is plain
        assert plain._loggers and all(
            plain._filter in x.filters for x in plain._loggers
        )
        assert all(x.name.startswith("jax.") for x in plain._loggers)
    finally:
        plain.stop()
        plain.paused = True
    assert _plain.PlainJits.started is None


def test_a_jax_without_explanations(monkeypatch):
    class Config:
        def update(self, name, value):
            raise AttributeError(name)

    monkeypatch.setattr(jax, "config", Config())
    plain = _plain.PlainJits()
    plain.start()
    plain.stop()
    plain.paused = True
    assert not plain.explained and plain._loggers == []


def test_functions_that_were_seen_before():
    plain = _plain.PlainJits()
    kinds = []
    unplaced = _plain.Miss("f", None, "first-call")
    again = _plain.Miss("g", ("a.py", 1, "g"), "first-call")
    for miss in (unplaced, again):
        for _ in range(2):
            miss = _plain.dataclasses.replace(miss)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(_plain, "parse", lambda text, miss=miss: miss)
                plain.explain("")
            kinds.append(miss.kind)
    assert kinds == ["first-call", "first-call", "first-call", "fresh-function"]
    assert len(plain._pending.misses) == 4
