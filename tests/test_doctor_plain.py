"""What the doctor learns about functions under plain `jax.jit` from JAX's events and
log.
"""

import logging

import jax
import pytest

from eqx_fastjit.doctor import _plain
from tests.clock import COMPILED, LOWERED, TRACED


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
