"""Signatures as texts, and how a lock file is read, written and compared."""

import dataclasses
import json
import os
import sys
import sysconfig

import equinox as eqx
import pytest

from eqx_fastjit import _record
from eqx_fastjit._describe import describe_call
from eqx_fastjit._place import Place
from eqx_fastjit._units import show_seconds
from eqx_fastjit.doctor import _lock
from eqx_fastjit.doctor._lock import LockError, Recorder
from tests.doctor_records import array, node, static, trace_of


pytestmark = pytest.mark.one_engine


# --- signatures ----------------------------------------------------------------------


class Static(eqx.Module):
    value: object = eqx.field(static=True)


def test_a_signature():
    trace = trace_of(
        node("m", "a.Model", 2),
        node("m.none", "NoneType", 0),
        array("m.w", "(2, 3)", sharding="PartitionSpec('a',) over {'a': 2}"),
        array("x", "(4,)", weak_type="True"),
        array("y", "()", "int8", sharding=None),
        array("both", "(5,)", weak_type="True", sharding="P over m"),
        static("n", "2"),
        static("act", "<lambda> (a.py:12)", "function"),
        static("f", "g (a b.py:12)", "function"),
        config=(
            ("jax_enable_x64", "True"),
            ("jax_default_prng_impl", "threefry2x32"),
            ("jax_numpy_dtype_promotion", "standard"),
            ("jax_default_device", "None"),
            ("jax_default_matmul_precision", "high"),
            ("jax_debug_nans", "True"),
            ("mesh", "a"),
        ),
    )
    assert _lock.signature_of(trace) == {
        "arrays": {
            "m.w": "float32[2,3] PartitionSpec('a',) over {'a': 2}",
            "x": "float32[4] weakly typed",
            "y": "int8[]",
            "both": "float32[5] weakly typed P over m",
        },
        "nodes": {"m": "a.Model of 2", "m.none": "None"},
        "statics": {
            "n": "2 (int)",
            "act": "<lambda> (a.py) (function)",
            "f": "g (a b.py:12) (function)",
        },
        "settings": {
            "jax_enable_x64": "True",
            "jax_default_matmul_precision": "high",
            "mesh": "a",
        },
    }
    settings = (("jax_enable_x64", "False"), ("jax_default_prng_impl", "rbg"))
    assert _lock.signature_of(trace_of(config=settings)) == {
        "settings": {"jax_default_prng_impl": "rbg"}
    }
    assert _lock.signature_of(trace_of()) == {}


# --- what is recorded ----------------------------------------------------------------


def at(folder, name="f", line=9):
    return Place(str(folder / "a.py"), line, name)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (frozenset([0, 8]), "frozenset({0, 8})"),
        (frozenset([8, 0]), "frozenset({0, 8})"),  # which has another order
        ({8, 0}, "{0, 8}"),
        (frozenset("gfedcba"), "frozenset({'a', 'b', 'c', 'd', 'e', 'f', ...})"),
        (("x", frozenset([8, 0])), "('x', frozenset({0, 8}))"),
        (frozenset(), "frozenset()"),
        (set(), "set()"),
        ({}, "{}"),
        (frozenset(range(1000)), "frozenset({0, 1, 10, 100, 101, 102, ...})"),
        (frozenset(range(1001)), "frozenset of 1001"),
        ([2, 1], "[2, 1]"),
        ([[[[[1]]]]], "[[list of 1]]"),
        ({1: {2: {3: {4: 5}}}}, "{1: {2: dict of 1}}"),
        ({2: "b", 1: "a"}, "{2: 'b', 1: 'a'}"),
    ],
)
def test_how_containers_are_described(value, text):
    (entry,) = describe_call([("x", Static(value))])[1:]
    assert dict(entry.facets)["value"] == text


def test_which_leaves_nodes_and_fields_are_described():
    call = [("x", (1, {"b": None, "a": [2.5]})), ("m", Static(3))]
    assert [(e.path, e.kind) for e in describe_call(call)] == [
        ("x", "node"),
        ("x[0]", "static"),
        ("x[1]", "node"),
        ("x[1]['a']", "node"),
        ("x[1]['a'][0]", "static"),
        ("x[1]['b']", "node"),
        ("m", "node"),
        ("m.value", "static"),
    ]


def test_how_much_of_a_configuration_is_described():
    cls = dataclasses.make_dataclass("Wide", [f"a{i}" for i in range(150)], frozen=True)
    wide = describe_call([("x", Static(cls(*range(150))))])
    assert [e.path for e in wide[-2:]] == ["x.value.a98", "x.value.a99"]
    link = dataclasses.make_dataclass("Link", ["next"], frozen=True)
    chain = ()
    for _ in range(9):
        chain = link(chain)
    deep = describe_call([("x", Static(chain))])
    assert deep[-1].path == "x.value.next.next.next.next"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (59.0, "59 s"),
        (59.94, "59.9 s"),
        (60.0, "1 min 0 s"),
        (3599.6, "60 min 0 s"),
        (1.0, "1 s"),
        (0.9994, "999 ms"),
        (0.9996, "1 s"),
        (0.0009994, "999 us"),
        (0.0009996, "1 ms"),
        (0.0, "0 us"),
    ],
)
def test_durations(seconds, text):
    assert show_seconds(seconds) == text


def test_a_recorder(tmp_path):
    heard, ready = [], []
    recorder = Recorder(
        str(tmp_path), lambda *args: heard.append(args), lambda: ready.append(1)
    )
    hooks = list(_record.after)
    recorder.begin()
    recorder.jax_imported()
    assert ready == [1] and _record.after == hooks
    recorder.equinox_imported()
    assert _record.after == [*hooks, recorder._after]
    traces = [
        trace_of(static("n", n), name=name, place=at(tmp_path, name), site=site)
        for name, n, site in (
            ("g", "1", None),
            ("f", "2", at(tmp_path, line=3)),
            ("f", "1", at(tmp_path / "sub", line=4)),
            ("f", "2", at(tmp_path, line=5)),
        )
    ]
    for trace in (*traces, trace_of(failed=True), trace_of(inside=1)):
        recorder._after(trace)
    recorder.stop()
    assert _record.after == hooks
    first, second = ({"statics": {"n": f"{n} (int)"}} for n in (1, 2))
    assert recorder.signatures() == {"a.py:f": [first, second], "a.py:g": [first]}
    assert list(recorder.signatures()) == ["a.py:f", "a.py:g"]
    # The line where each was first seen.
    assert list(recorder.seen.values()) == [
        (first, "?:0"),
        (second, "a.py:3"),
        (first, "sub/a.py:4"),
    ]
    # Each call is handed on.
    assert heard == [
        ("a.py:g", first, traces[0]),
        ("a.py:f", second, traces[1]),
        ("a.py:f", first, traces[2]),
        ("a.py:f", second, traces[3]),
    ]
    recorder = Recorder(str(tmp_path))
    recorder.jax_imported()
    recorder._after(trace_of(place=None))
    assert recorder.signatures() == {"f": [{}]}
    recorder.stop()


def test_names_of_files(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib"), "relative"])
    recorder = Recorder(str(tmp_path))
    name = recorder._relative
    assert name(str(tmp_path / "a.py")) == "a.py"
    assert name(str(tmp_path / "sub" / "a.py")) == "sub/a.py"
    assert name(str(tmp_path / "lib" / "b" / "a.py")) == "b/a.py"
    assert name(os.path.join(sysconfig.get_path("stdlib"), "json", "a.py")) == (
        "json/a.py"
    )
    assert name(os.path.join(sysconfig.get_path("purelib"), "jax", "a.py")) == (
        "jax/a.py"
    )
    assert name(f"{tmp_path}x/a.py") == "a.py" and name("/other/b/c.py") == "c.py"
    monkeypatch.chdir(tmp_path / "..")
    assert name(os.path.join(tmp_path.name, "a.py")) == "a.py"


# --- files ---------------------------------------------------------------------------


def test_the_text_of_a_lock_file():
    signatures = {"b": [{"statics": {"y": "é", "x": "2"}}], "a": []}
    text = _lock.dump(signatures)
    assert text == (
        '{\n "functions": {\n  "a": [],\n  "b": [\n   {\n    "statics": {\n'
        '     "x": "2",\n     "y": "é"\n    }\n   }\n  ]\n },\n "schema": 1\n}\n'
    )
    assert _lock.load(text) == signatures
    one, other = {"a": {"x": "1"}, "b": {}}, {"b": {}, "a": {"x": "1"}}
    assert _lock.key_of(one) == _lock.key_of(other) != _lock.key_of({})


LISTS = "expected lists of signatures under 'functions'"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "expected schema 1, found None"),
        ({}, "expected schema 1, found None"),
        ({"schema": 2, "functions": {}}, "expected schema 1, found 2"),
        ({"schema": 1}, LISTS),
        ({"schema": 1, "functions": []}, LISTS),
        ({"schema": 1, "functions": {"f": {}}}, LISTS),
        ({"schema": 1, "functions": {"f": ["x"]}}, LISTS),
        ({"schema": 1, "functions": {"f": [{"arrays": "x"}]}}, LISTS),
        ({"schema": 1, "functions": {"f": [{"arrays": {"x": 1}}]}}, LISTS),
        ({"schema": 1, "functions": {"f": [{}], "g": [{}, 1]}}, LISTS),
    ],
)
def test_files_that_are_no_lock_files(data, message):
    with pytest.raises(LockError) as error:
        _lock.load(json.dumps(data))
    assert str(error.value) == message


def test_a_file_that_is_no_json():
    with pytest.raises(LockError, match=r"^not JSON \(Expecting"):
        _lock.load("{")
    assert _lock.load('{"schema": 1, "functions": {}}') == {}


def explained(signature, *known):
    return list(_lock.explain_unknown("f", signature, "a.py:3", {"f": list(known)}))


def test_why_a_signature_is_unknown():
    new = {"arrays": {"x": "f32[2]", "y": "f32[2]"}, "statics": {"n": "1"}}
    missing = ["f: not in the file; called at a.py:3"]
    assert explained(new) == missing
    assert list(_lock.explain_unknown("f", new, "a.py:3", {"g": [new]})) == missing
    head = "f: a new signature in the call at a.py:3; unlike the nearest known:"
    new["arrays"]["z"] = "f32[2]"
    near = {"arrays": {**new["arrays"], "x": "f32[3]"}, "nodes": {"m": "list of 1"}}
    assert explained(new, {}, near, {"arrays": {}}) == [
        head,
        "    `x`: f32[3] -> f32[2]",
        "    `m`: list of 1 -> nothing",
        "    `n`: nothing -> 1",
    ]
    many = {"statics": {f"n{i:02}": "1" for i in range(10)}}
    assert len(explained(many, {})) == 11
    many["statics"] |= {"n10": "1", "n11": "1"}
    assert explained(many, {})[-2:] == [
        "    `n09`: nothing -> 1",
        "    and 2 more",
    ]
