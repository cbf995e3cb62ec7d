"""The search for cliffs: random programs, shrinking, and the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cliffs import _contenders, _random, _statics
from benchmarks.cliffs.__main__ import _rows, main
from benchmarks.cliffs._build import Builder, KEYS, LAYERS, LEAVES, NODES, OPTIMISERS
from benchmarks.cliffs._find import Found, search, Settings, shrink_worst
from benchmarks.cliffs._limits import in_words, Outcome, outcome, worst
from benchmarks.cliffs._programs import (
    CALLS,
    dumps,
    from_json,
    Node,
    Program,
    RETURNS,
    STYLES,
    text,
    USED,
)
from benchmarks.cliffs._random import random_program
from benchmarks.cliffs._shrink import shrink, size
from benchmarks.cliffs._timer import timed, Timer


_ROOT = Path(__file__).parent.parent
_X = Node("leaf", "float32", 3)


pytestmark = pytest.mark.one_engine


# --- programs ------------------------------------------------------------------------


def test_a_seed_gives_the_same_programs_in_another_process():
    code = (
        "from benchmarks.cliffs._random import random_program\n"
        "from benchmarks.cliffs._programs import dumps\n"
        "print(*[dumps(random_program(5, i)) for i in range(20)], sep='\\n')"
    )
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=True)
    here = [random_program(5, i) for i in range(20)]
    assert [from_json(json.loads(line)) for line in out.stdout.splitlines()] == here
    assert here != [random_program(6, i) for i in range(20)]


def test_programs_have_all_that_there_is():
    programs = [random_program(0, i) for i in range(3000)]
    nodes = [node for program in programs for node in program.walk()]
    statics = {s for node in nodes for s in node.statics}
    assert {s.removesuffix("*") for s in statics} == set(_statics.STATICS)
    assert {n.of.removesuffix("*") for n in nodes if n.kind == "static"} == set(
        _statics.HASHABLE
    )
    assert {n.of for n in nodes if n.kind == "leaf"} == set(LEAVES)
    assert {n.of for n in nodes if n.kind == "dict"} == set(KEYS)
    assert {n.of for n in nodes if n.kind == "nn"} == set(LAYERS)
    assert {n.of for n in nodes if n.kind == "optax"} == set(OPTIMISERS)
    assert {n.kind for n in nodes} == {*NODES, "leaf", "static", "repeat"}
    for name, all_of_them in (
        ("calls", CALLS),
        ("style", STYLES),
        ("used", USED),
        ("returns", RETURNS),
    ):
        assert {getattr(p, name) for p in programs} == set(all_of_them)
    assert max(program.instances() for program in programs) > 300


def test_descriptions_survive_json_and_are_readable():
    layer = Node("module", children=(_X,), statics=("float*", "str"))
    model = Node("repeat", "list", 16, (layer,))
    program = Program((model, Node("static", "int")), "rebuilt", "keyword")
    assert from_json(json.loads(dumps(program))) == program
    words = text(program)
    assert "f(a=[<module>(float32[3], s0=static float, each another" in words
    assert "for i in range(16)], b=static int)" in words
    assert "an equal tree each time" in words


@pytest.mark.parametrize("kind", _statics.STATICS)
def test_statics_are_equal_where_their_numbers_are(kind):
    make = _statics.STATICS[kind]
    assert make(1) == make(1)
    assert repr(make(1)) == repr(make(1))
    if kind not in ("None", "ellipsis"):
        assert make(1) != make(2)
    if kind in _statics.MUTABLE:
        static = make(1)
        _statics.MUTABLE[kind](static, make(2))
        assert static == make(2)


def test_rebuilt_trees_share_nothing_but_arrays():
    node = Node("module", children=(_X,), statics=("float", "list", "tuple"))
    one, other = Builder().build(node), Builder().build(node)
    assert one.d0 is other.d0
    for name in ("s0", "s1", "s2"):
        assert getattr(one, name) == getattr(other, name)
        assert getattr(one, name) is not getattr(other, name)


# --- timing --------------------------------------------------------------------------

_MODULE = Node("module", children=(_X, Node("leaf", "key")), statics=("list*", "str"))
_MODEL = Node("repeat", "list", 2, (_MODULE,))


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("style", STYLES)
def test_contenders_agree(calls, style):
    batch = Node("leaf", "numpy float32")
    program = Program((_MODEL, batch), calls, style, returns="tree")
    by_name = {n: _contenders.contender(program, n) for n in _contenders.NAMES}
    assert _contenders.difference(program, by_name) == ""
    traces = {name: by_name[name].traces for name in ("ours", "eqx")}
    assert traces["ours"] == {"turns": 3, "changed": 2}.get(calls, 1)
    # Equinox does not notice statics that were changed in place.
    assert traces["eqx"] == {"turns": 3}.get(calls, 1)


def test_faults_are_found(monkeypatch):
    import eqx_fastjit

    program = Program((_MODEL,), "rebuilt")

    def with_ours(wrap):
        with monkeypatch.context() as patch:
            patch.setattr(eqx_fastjit, "filter_jit", wrap)
            return timed(program, 1).fault

    def raises(f):
        raise ValueError("broken\nin two lines")

    assert with_ours(raises) == "ours: ValueError: broken"
    assert "other arrays" in with_ours(lambda f: lambda *args: f(*args) + 1)
    assert "another structure" in with_ours(lambda f: lambda *args: (f(*args),))
    # Behaves as if every call were a cache miss.
    assert "ours traced 16 times, eqx 1" in with_ours(lambda f: f)


@pytest.mark.parametrize("calls", CALLS)
def test_what_is_right_is_timed(calls):
    found = timed(Program((_MODEL,), calls), 1)
    assert found.fault == found.refused == ""
    assert set(found.us) == set(_contenders.NAMES)
    assert set(found.ratios) == {"ours/jit", "ours/flat", "ours/eqx", "flat/jit"}


def test_what_equinox_refuses_is_no_program():
    # A static leaf that is not hashable.
    program = Program((Node("static", "mutable dataclass"), _X))
    found = timed(program, 1)
    assert found.refused.startswith("eqx: ") and worst(found)[1] == 0


def test_a_program_that_kills_its_process_is_at_fault(monkeypatch):
    timer = Timer("cpu")
    try:
        assert timer(Program((_X,)), 1).ratios
        timer._process._process.kill()
        assert "its process ended with code -9" in timer(Program((_X,)), 1).fault
        assert timer(Program((_X,)), 1).ratios
    finally:
        timer.close()


# --- limits --------------------------------------------------------------------------


def _outcome(ours, jit, flat, eqx):
    times = {"ours": ours, "jit": jit, "flat": flat, "eqx": eqx}
    return outcome({name: [value] * 3 for name, value in times.items()})


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ((10, 20, 9, 90), None),
        ((19, 18, 15, 90), "ours/jit, where flat/jit is below 0.9"),
        ((11, 10, 9.5, 90), None),  # `jax.jit` has no overhead to avoid
        ((19, 30, 9, 90), None),  # slower than twice flat, but the call is short
        ((29, 30, 19, 90), "ours/flat, calls over 20 us"),
        ((10, 10, 9.5, 8), "ours/eqx"),
    ],
)
def test_limits(times, expected):
    limit, excess = worst(_outcome(*times))
    assert (limit.name if excess > 1 else None) == expected


def test_a_wrong_result_is_worse_than_any_time():
    slow, wrong = _outcome(900, 1, 0.5, 2), Outcome(fault="other arrays")
    assert worst(wrong)[1] > worst(slow)[1] > 1
    assert in_words(wrong) == "other arrays"


# --- the search ----------------------------------------------------------------------


class _Planted:
    """Slow if two instances differ in a static string."""

    def __init__(self):
        self.calls = 0

    def __call__(self, program, rounds):
        self.calls += 1
        slow = any(self._is_slow(node) for node in program.walk())
        return _outcome(100 if slow else 10, 20, 9, 90)

    def _is_slow(self, node):
        return (
            node.kind == "repeat"
            and node.n >= 2
            and any("str*" in inner.statics for inner in node.walk())
        )


def test_the_smallest_program_is_found():
    layer = Node(
        "module",
        "derived",
        children=(_X, Node("dict", "enum", children=(_X, _X))),
        statics=("int", "str*", "list"),
    )
    model = Node("tuple", children=(Node("repeat", "dict", 32, (layer,)), _X))
    program = Program(
        (Node("static", "int"), model, Node("optax", "adam", children=(model,))),
        "rebuilt",
        "method",
        "half",
        "tree",
    )
    time = _Planted()
    smallest = shrink(program, lambda p: time(p, 1).ratios["ours/jit"] > 1, 1000)
    # One leaf may stay inside a layer: no single step removes just the layer.
    assert size(smallest) <= (8, 3, 3)
    (repeat,) = [node for node in smallest.walk() if node.kind == "repeat"]
    assert repeat.n == 2 and repeat.children[0].statics == ("str*",)


def test_the_search_finds_shrinks_and_groups():
    time = _Planted()
    settings = Settings(rounds=1, shrunk=3, attempts=2000)
    found = list(search(time, 0, 200, settings))
    assert [one.index for one in found] == list(range(200))
    shrink_worst(time, found, settings)
    bad = [one for one in found if one.excess > 1]
    assert bad and found[: len(bad)] == bad
    first, *others = bad
    assert size(first.smallest[0]) <= (8, 3, 3)
    # Programs with the same cause are not shrunk again.
    assert {other.like for other in others} == {first.index}
    assert time.calls < 2500


def test_a_fluke_is_no_cliff():
    """A program near or beyond a limit is timed again with more rounds."""
    rounds_of = []

    def time(program, rounds):
        rounds_of.append(rounds)
        return _outcome(100 if rounds == 5 else 10, 20, 9, 90)

    (found,) = search(time, 0, 1, Settings())
    assert found.excess < 1 and found.smallest is None
    assert rounds_of == [5, 20]


def test_attempts_are_bounded():
    time = _Planted()
    slow = random_slow(time)
    one = Found(0, slow, time(slow, 1))
    time.calls = 0
    shrink_worst(time, [one], Settings(rounds=1, attempts=7))
    assert time.calls <= 14


def random_slow(time):
    return next(
        program
        for program in (random_program(0, i) for i in range(1000))
        if time(program, 1).ratios["ours/jit"] > 1
    )


def test_every_step_of_shrinking_is_a_program():
    """Shrinking produces only programs that can be built and that JAX and Equinox
    accept.
    """
    seen = []

    def shows(program):
        seen.append(program)
        return len(seen) % 3 == 0

    for index in range(30):
        shrink(random_program(1, index), shows, 30)
    assert len(seen) > 300
    for program in seen:
        assert _random.has_array(program)
        builder = Builder()
        for arg in program.args:
            builder.build(arg)


# --- the command ---------------------------------------------------------------------


def _command(*args):
    command = [sys.executable, "-m", "benchmarks.cliffs", "--device", "cpu", *args]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True)


def test_quick(tmp_path):
    path = tmp_path / "cliffs.json"
    out = _command("--quick", "--seed", "4", "--json", str(path))
    # With so few rounds, a limit may be broken by noise.
    assert out.returncode in (0, 1), out.stderr
    assert "ours/eqx: worst of 3 programs" in out.stdout
    results = json.loads(path.read_text())
    assert results["command"].endswith("--programs 3 --seed 4 --quick")
    assert {"machine", "versions", "date", "worst"} <= set(results)
    broken = any(row["value"] > row["at_most"] for row in results["rows"])
    assert out.returncode == broken
    for entry in results["worst"]:
        assert from_json(entry["description"])


def test_replay(tmp_path, capsys):
    program = Program((_X, Node("static", "int")))
    path = tmp_path / "program.json"
    path.write_text(dumps(program))
    for words in (str(path), dumps(program)):
        assert main(["--quick", "--device", "cpu", "--replay", words]) in (0, 1)
        out = capsys.readouterr().out
        assert text(program) in out and "us a call: " in out
    assert main(["--quick", "--device", "cpu", "--replay", "0:14"]) in (0, 1)
    assert dumps(random_program(0, 14)) in capsys.readouterr().out


@pytest.mark.parametrize("words", ["nothing", '{"args": [{"kind": "no"}]}', "{"])
def test_what_is_no_program_is_refused(words, capsys):
    with pytest.raises(SystemExit) as error:
        main(["--replay", words])
    assert error.value.code == 2
    assert "--replay: no such program" in capsys.readouterr().err


def test_a_row_for_each_limit():
    found = [Found(i, Program((_X,)), _outcome(30, 40, 20, 90)) for i in range(3)]
    found.append(Found(3, Program((_X,)), Outcome(fault="other arrays")))
    results = {"command": "python -m benchmarks.cliffs", "commit": "0" * 40}
    rows = _rows(found, results)
    assert [row["value"] for row in rows] == [0.75, 1.5, pytest.approx(1 / 3), 1]
    assert [row["value"] <= row["at_most"] for row in rows] == [True] * 3 + [False]
    assert rows[0]["what"].endswith("worst of 3 programs")
    assert rows[-1]["what"].endswith("of 4 programs")
