"""Hints of the doctor, in full: figures, names and words."""

import types

import pytest

from eqx_fastjit.doctor import _hints
from eqx_fastjit.doctor._report import Hint, LineTime, TimePart, TimeSpent
from tests.doctor_records import (
    array,
    DEFINED,
    HERE,
    inspected,
    LIBRARY,
    plain,
    seen_of,
    static,
    THERE,
    watch_of,
)


pytestmark = pytest.mark.one_engine


def hints(*seen, seconds=100.0, plain=(), unrolled=(), time=None, **options):
    watch = watch_of(*seen, plain=plain)
    vars(watch).update(options)
    time = time or TimeSpent(seconds, ())
    return list(_hints.make_hints(watch, time, set(unrolled)))


def of_kind(kind, found):
    (hint,) = [h for h in found if h.kind == kind]
    return hint


def test_a_hint_on_the_persistent_cache():
    many = [seen_of(seconds=(0, 0, 30.0, 0)), seen_of(seconds=(0, 0, 6.0, 0))]
    sin = plain("sin", parts=(0, 0, 4.0))
    hint = of_kind("persistent-cache", hints(*many, plain=[sin], cache_seconds=4.0))
    assert hint == Hint(
        kind="persistent-cache",
        function="",
        file=None,
        line=None,
        seconds=36.0,
        message="XLA's compiler ran for 40 s of 1 min 40 s. With JAX's persistent "
        "cache, a second run would take about 1 min 4 s",
        fix="Set `JAX_COMPILATION_CACHE_DIR` to a persistent directory.",
    )
    assert hints(*many, cache_directory="/tmp") == []
    # 32 s of 40 s are kept, and less.
    many = [seen_of(seconds=(0, 0, s, 0)) for s in (8.0, 32.0)]
    hint = of_kind("persistent-cache", hints(*many, cache_seconds=8.5))
    assert "MIN_COMPILE" not in hint.fix
    many = [seen_of(seconds=(0, 0, s, 0)) for s in (8.5, 31.5)]
    (hint,) = hints(*many, cache_seconds=9.0)
    assert hint.fix == (
        "Set `JAX_COMPILATION_CACHE_DIR` to a persistent directory, and "
        "`JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0`, because most compilations "
        "took less than 9 s, and are not kept by default."
    )


def test_a_hint_on_exporting():
    calls_host = inspected(callbacks=("callback",))
    skipped = [
        seen_of(name="inside", inside=1, seconds=(50.0, 0, 0, 0)),
        seen_of(name="failed", failed=True, seconds=(50.0, 0, 0, 0)),
        seen_of(name="ahead", ahead=True, seconds=(50.0, 0, 0, 0)),
        seen_of(name="calls", inspection=calls_host, seconds=(50.0, 0, 0, 0)),
        seen_of(name="unplaced", place=None, seconds=(50.0, 0, 0, 0)),
        seen_of(
            name="library",
            place=DEFINED._replace(file=LIBRARY),
            seconds=(50.0, 0, 0, 0),
        ),
    ]
    assert hints(*skipped) == hints() == []
    # The first traces alone count.
    first = seen_of(seconds=(2.0, 1.0, 0.5, 40.0))
    again = seen_of(seconds=(50.0, 50.0, 0, 0))
    big = seen_of(name="big", site=THERE, seconds=(6.0, 11.0, 4.5, 0))
    hint = of_kind("export", hints(*skipped, first, again, big))
    assert hint == Hint(
        kind="export",
        function="big",
        file="b.py",
        line=20,
        seconds=17.0,
        message="tracing and lowering big and 1 other function took 20 s. This is "
        "repeated in each process, even with a persistent cache. If they were loaded "
        "from a file with native code, nothing would be compiled either, and the first "
        "calls would take about 3.75 s",
        fix="Save it with `f.export(...).save(path, compiled=True)`, and call "
        "`eqx_fastjit.load(path, trusted=True)`.",
    )
    hint = of_kind("export", hints(seen_of(site=None, seconds=(10.0, 10.0, 0, 0))))
    assert (hint.function, hint.file, hint.line) == ("f", None, None)
    assert hint.message.startswith("tracing and lowering f took 20 s.")


def layers(iterations=4, equations=300, line=5, **options):
    options = {"uniform": True, "file": "a.py", **options}
    return types.SimpleNamespace(
        iterations=iterations,
        equations=equations,
        scan_equations=equations // 3,
        line=line,
        **options,
    )


def test_a_hint_on_layers():
    many = [
        seen_of(name="small", inspection=inspected(300, [layers()])),
        seen_of(name="big", inspection=inspected(600, [layers(5, 600)])),
        seen_of(name="none", inspection=inspected(0, [layers()])),
        seen_of(),
    ]
    many[1].trace.compile = 11.0
    hint = of_kind("scan-layers", hints(*many))
    # Two thirds of 7 s, and of 14 s.
    assert hint == Hint(
        kind="scan-layers",
        function="big",
        file="a.py",
        line=5,
        seconds=pytest.approx(14.0),
        message="the 5 iterations of this loop are alike, and have 600 of the 600 "
        "equations of big. With `jax.lax.scan`, the body would be compiled once, which "
        "would save about 14 s (estimated from the number of equations)",
        fix="Create the layers with `eqx.filter_vmap` over their keys, which stacks "
        "their arrays, and iterate over them with `jax.lax.scan`.",
    )
    for other in (layers(uniform=False), layers(file=LIBRARY), layers(3)):
        loops = [other, layers(line=6)]
        found = hints(seen_of(inspection=inspected(300, loops)), seconds=40.0)
        assert [h.line for h in found if h.kind == "scan-layers"] == [6]
    both = inspected(300, [layers(), layers(line=6)])
    found = hints(seen_of(inspection=both), seconds=40.0, unrolled=[("a.py", 5)])
    assert [h.line for h in found if h.kind == "scan-layers"] == [6]


def batch(n, *others, seconds=(0.5, 0.25, 0.25, 1.0), **options):
    x = [array("x", f"({n}, 3)"), array("y", f"({n},)")]
    return seen_of(*x, *others, seconds=seconds, **options)


def ragged(*seen, seconds=50.0):
    found = hints(*seen, seconds=seconds, cache_directory="/tmp")
    return [h for h in found if h.kind == "ragged-batch"]


def test_a_hint_on_a_smaller_batch():
    (hint,) = ragged(batch(8), batch(6))
    assert hint == Hint(
        kind="ragged-batch",
        function="f",
        file="a.py",
        line=1,
        seconds=2.0,
        message="the call has batches of 8, and one of 6 (`x`), for which f was "
        "compiled again",
        fix="Drop the last batch (`drop_last`). Under BatchNorm, nothing else is "
        "right. Otherwise you may pad it to 8, if you also pass its true size, as an "
        "array, and mask by it wherever the batch is read.",
    )
    # In 100 s it is a fiftieth; and a third size is another finding.
    assert len(ragged(batch(8), batch(6), seconds=100.0)) == 1
    assert ragged(batch(8), batch(6), seconds=101.0) == []
    assert ragged(batch(8), batch(6), batch(5)) == []
    assert ragged(batch(6), batch(8)) == ragged(batch(8), batch(8)) == []
    for other in (
        batch(6, inside=1),
        batch(6, failed=True),
        batch(6, name="g"),
        batch(6, site=THERE),
    ):
        assert ragged(batch(8), other) == []
        (hint,) = ragged(batch(8, site=None), other, batch(6, site=None))
        assert (hint.file, hint.line, hint.seconds) == (None, None, 2)
    # Twice, for training and for evaluation.
    both = [batch(n, static("training", t)) for t in ("True", "False") for n in (8, 6)]
    (hint,) = ragged(*both)
    assert hint.seconds == 4 and "hidden" not in hint.message
    (hint,) = ragged(batch(8, static("n", "1")), batch(6, static("n", "2")))
    hidden = "(hidden by another cause: `n`: static 1 (int) -> 2 (int))"
    assert hint.message.endswith(f"again {hidden}")


def test_a_hint_on_operations():
    part = TimePart("eager", "", 30.0, (LineTime("a.py", 3, 20.0),) * 2)
    other = TimePart("python", "", 60.0, ())
    (hint,) = hints(time=TimeSpent(90.0, (other, part)))
    assert hint == Hint(
        kind="eager-operations",
        function="",
        file="a.py",
        line=3,
        seconds=30.0,
        message="JAX operations outside of jit took 30 s, 20 s of that here: each is "
        "a separate program, with the overhead of a call",
        fix="Move them into a jitted function, such as the one that uses their "
        "results.",
    )
    part = TimePart("eager", "", 30.0, ())
    (hint,) = hints(time=TimeSpent(90.0, (part,)))
    assert (hint.file, hint.line) == (None, None)
    assert hint.message.startswith("JAX operations outside of jit took 30 s: each")


def test_a_hint_on_operations_that_one_line_compiles():
    many = [plain(f"op{i % 10}", parts=(0, 0, 0.5)) for i in range(40)]
    found = hints(plain=many, cache_directory="/tmp")
    assert found == [
        Hint(
            kind="eager-operations",
            function="",
            file="a.py",
            line=1,
            seconds=20.0,
            message="10 JAX operations outside of jit took 20 s to compile here: each "
            "is a separate program",
            fix="Move them into a jitted function, such as the one that uses their "
            "results.",
        )
    ]
    # Of two lines; too few operations; of jitted functions; not a fifth of the run.
    two = [plain(c.name, site=site) for c in many for site in (HERE, THERE)]
    few = [c for c in many if c.name != "op9"]
    jitted = [plain(c.name, ("first-call",), parts=(0, 0, 0.5)) for c in many]
    for others in (few, jitted):
        assert hints(plain=others, cache_directory="/tmp") == []
    assert len(hints(plain=two, cache_directory="/tmp")) == 2
    assert hints(plain=many, seconds=101.0, cache_directory="/tmp") == []


@pytest.mark.parametrize(
    ("kind", "seconds", "total", "expected"),
    [
        # A tenth of compiling is spent on reading, and a seventh of tracing on loading.
        ("persistent-cache", 5.6, 25.0, True),
        ("persistent-cache", 5.5, 5.0, False),
        ("persistent-cache", 5.6, 25.3, False),
        ("export", 3.6, 30.0, True),
        ("export", 3.5, 3.0, False),
        ("export", 3.6, 31.0, False),
        ("ragged-batch", 1.0, 50.0, True),
        ("ragged-batch", 0.99, 1.0, False),
        ("ragged-batch", 1.0, 51.0, False),
    ],
)
def test_what_is_worth_a_hint(kind, seconds, total, expected):
    many = {
        "persistent-cache": [seen_of(seconds=(0, 0, seconds, 0))],
        "export": [seen_of(seconds=(seconds / 2, seconds / 2, 0, 0))],
        "ragged-batch": [
            batch(8, seconds=(0, 0, 0, 0)),
            batch(6, seconds=(0, 0, 0, seconds)),
        ],
    }
    assert [h.kind for h in hints(*many[kind], seconds=total)] == [kind] * expected


def test_hints_in_order():
    part = TimePart("eager", "", 30.0, ())
    many = [seen_of(seconds=(10.0, 10.0, 30.0, 0)), seen_of(static("n", "2"))]
    found = hints(*many, time=TimeSpent(100.0, (part,)))
    assert [(h.kind, h.seconds) for h in found] == [
        *(("persistent-cache", pytest.approx(30.6)), ("eager-operations", 30)),
        ("export", 17),
    ]
    found = hints(*many, time=TimeSpent(100.0, (part,)), _share=0.1)
    assert [h.kind for h in found] == ["eager-operations"]
