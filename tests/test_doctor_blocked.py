"""Lines that block, and operations outside of jit, in full: figures and edits."""

import pytest

from eqx_fastjit._place import Place
from eqx_fastjit.doctor import _blocked, _outside
from eqx_fastjit.doctor._plain import Compile, Miss
from eqx_fastjit.doctor._report import Finding
from eqx_fastjit.doctor._sites import Line
from eqx_fastjit.doctor._waits import CALL, Waiting
from tests.doctor_records import (
    array,
    F,
    HERE,
    inspected,
    seen_of,
    static,
    THERE,
)


pytestmark = pytest.mark.one_engine


def waiting(expression, what=CALL, count=10, waited=2.0, lost=1.0, **options):
    options = {"first": 0.0, "last": 2.0, "line": HERE, **options}
    return Waiting(
        what=what,
        expression=expression,
        count=count,
        waited=waited,
        lost=lost,
        **options,
    )


def test_a_line_that_blocks():
    found = _blocked.blocking(
        [
            waiting("f(x)", ".item()", line=THERE),
            waiting("x.item()", ".item()", count=12, lost=0.5),
            waiting("float(x)", "float()", lost=0.75, first=1.0, last=5.0),
        ],
        [],
        20.0,
    )
    there, here = found
    assert (there.file, there.line, there.function) == ("b.py", 20, "train")
    assert here == Finding(
        kind="blocking",
        severity="medium",
        function="main",
        file="a.py",
        line=1,
        leaf="",
        seconds=1.25,
        count=12,
        message=".item(), float() needs the value of an array. Python was blocked here "
        "12 times, for 4.00 s in total; for up to 1.25 s of this, it could have done "
        "other work",
        fix="Do not read results in each step: keep them as arrays, and read them "
        "every few steps, or one step later.",
    )
    # From the first wait of the line to the last, at different places in it.
    both = [waiting("a", first=0.0, last=2.0), waiting("b", first=18.1, last=20.1)]
    assert list(_blocked.blocking(both, [], 1.0)) == []
    both[1].last = 20.0
    assert len(list(_blocked.blocking(both, [], 1.0))) == 1
    # A jitted call that blocks is named, whatever else blocks there.
    both = [waiting("f(x)", lost=2.0), waiting("float(x)", "float()")]
    (finding,) = _blocked.blocking(both, [], 1.0)
    assert finding.message.startswith("Each call of `f` here blocks")
    both[0].lost = 0.5
    (finding,) = _blocked.blocking(both, [], 1.0)
    assert finding.message.startswith("float() needs the value")


def reason(expression, *seen):
    found = _blocked._reason(waiting(expression), [], list(seen))
    return found.leaf, found.text.removeprefix("Each call of "), found.fix


UNTIL = "here blocks until its result is ready, because"


def test_why_a_call_blocks():
    assert reason("(lambda: f)()()") == (
        "",
        f"a jitted function {UNTIL} it has a host callback, or large NumPy arrays as "
        "arguments, or arguments on several virtual CPU devices",
        "If it has NumPy arrays, pass copies as JAX arrays "
        "(`jnp.asarray(np.array(x))`).",
    )
    on_host = [array(path, sharding=None) for path in ("x", "y", "m.w", "m.b")]
    both = seen_of(static("n", "1"), array("z"), *on_host[:2], place=None)
    assert reason("f(x, y)", both) == (
        "x",
        f"`f` {UNTIL} `x`, `y` are NumPy arrays, whose memory JAX may read until then",
        "Pass copies as JAX arrays (`jnp.asarray(np.array(x))`): nothing else writes "
        "to them, and the call returns immediately.",
    )
    _, text, _ = reason("a.f(x)", seen_of(on_host[0]))
    assert text.startswith(f"`f` {UNTIL} `x` is a NumPy array, whose")
    _, text, _ = reason("f(x)", seen_of(*on_host[:3]))
    assert text.startswith(f"`f` {UNTIL} `x`, `y`, `m.w` are NumPy arrays, whose")
    _, text, _ = reason("f(x)", seen_of(*on_host))
    assert f"{UNTIL} `x`, `y`, `m.w` and 1 more are NumPy arrays" in text
    # Not of what was compiled ahead of time, or for another line and name.
    for other in (
        seen_of(on_host[0], ahead=True),
        seen_of(on_host[0], name="g", site=THERE),
    ):
        assert "it has a host callback, or large" in reason("f(x)", other)[1]
    assert "`x` is a NumPy" in reason("f(x)", seen_of(on_host[0], name="g"))[1]
    # One of that name is meant, and not another of that line.
    named = seen_of(array("x"), site=THERE)
    assert "or large" in reason("f(x)", named, seen_of(on_host[0], name="g"))[1]


def test_calls_that_block_as_equinox_does():
    """Whatever else they do, which would only matter if they did not."""
    entry = array("x", sharding=None)
    found = seen_of(entry, inspection=inspected(callbacks=(Place("a.py", 3, "g"),)))
    found.trace.function = found.trace.function._replace(asynchronous=False)
    leaf, text, fix = reason("f(x)", found)
    assert (leaf, text) == ("", f"`f` {UNTIL} calls block as those of Equinox do")
    assert "eqx-fastjit run --async" in fix and "writes to a buffer" in fix


def test_callbacks_that_block(tmp_path):
    path = tmp_path / "b.py"
    path.write_text("eqx.error_if(x)\n")
    callbacks = [Place("a.py", 3, "check"), Place(str(path), 1, "check")]
    calls = [seen_of(inspection=inspected(callbacks=(x,))) for x in callbacks]
    on_host = seen_of(array("x", sharding=None), inspection=inspected())
    leaf, text, fix = reason("f(x)", on_host, *calls)
    assert (leaf, text) == (
        "",
        f"`f` {UNTIL} a host callback in it may raise (`check` at a.py:3)",
    )
    assert fix.startswith(
        "Remove the callback from the function that is called in each"
    )
    _, text, _ = reason("f(x)", calls[1])
    assert text.endswith(f"(`eqx.error_if(x)` at {path}:1)")


def test_edits_of_a_call_that_blocks(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f(x, m):\n    pass\n\n\nf(a, b)\nf(a, *b)\n")
    on_host = [array(p, sharding=None) for p in ("x", "m.w", "m.b")]
    place = F._replace(file=str(path), line=1)

    def fix(line, *entries):
        at = waiting("f(a, b)", line=Line(str(path), line))
        seen = seen_of(*entries, place=place)
        return _blocked._reason(at, [], [seen]).fix.partition(":")[0]

    assert fix(5, *on_host[:1]) == "Write `f(jnp.asarray(np.array(a)), b)`"
    text = "Write `f(jnp.asarray(np.array(a)), jax.tree.map(lambda x"
    assert fix(5, *on_host) == text
    text = "Pass copies as JAX arrays (`jnp.asarray(np.array(x))`)"
    assert fix(3, *on_host) == text


def test_a_method_of_what_is_on_the_host(tmp_path):
    """What it is called on is no argument, in whose place another one could be."""
    path = tmp_path / "a.py"
    path.write_text("class M:\n    def f(self, x):\n        pass\n\n\nm.f(a)\n")
    place = F._replace(file=str(path), line=2)
    at = waiting("m.f(a)", line=Line(str(path), 6))
    for paths, edit in (
        (["self.w"], "Pass copies as JAX arrays (`jnp.asarray(np.array(self.w))`)"),
        (["self.w", "x"], "Write `m.f(jnp.asarray(np.array(a)))`"),
    ):
        entries = [array(p, sharding=None) for p in paths]
        seen = seen_of(*entries, place=place)
        assert _blocked._reason(at, [], [seen]).fix.startswith(f"{edit}:")


@pytest.mark.parametrize(
    ("expression", "name"),
    [
        ("f(x)", "f"),
        ("self.model.step(x)", "step"),
        ("f(x).y", ""),
        ("f(x)(y)", ""),
        ("f", ""),
        ("f(", ""),
        ("", ""),
    ],
)
def test_the_name_of_what_is_called(expression, name):
    assert _blocked._called(expression) == name


# --- operations outside of jit -------------------------------------------------------


def outside(name, n, *, expression="", line=HERE, miss=None):
    return [
        Compile(name, miss, line, 900.0, expression, 0.5, 0.25, 0.25) for _ in range(n)
    ]


def test_an_operation_that_is_compiled_again_and_again():
    (finding,) = _outside.outside_of_jit(outside("scan", 4), 100.0 / 2)
    assert finding == Finding(
        kind="outside-jit",
        severity="medium",
        function="main",
        file="a.py",
        line=1,
        leaf="scan",
        seconds=4.0,
        count=4,
        message="`scan` was compiled 4 times outside of any jitted function, for a new "
        "function each time; 4 s in total",
        fix="Call it in `main` under `eqx.filter_jit`. Create it once and call it as "
        "often as needed: it compiles as one program.",
    )
    (finding,) = _outside.outside_of_jit(outside("sin", 12), 10.0)
    assert "12 times outside of any jitted function, for each shape; 12 s" in (
        finding.message
    )
    assert finding.fix.startswith("Jitted alone, it would be compiled for each shape")
    for name in ("while", "cond", "custom_linear_solve", "checkpoint"):
        assert len(list(_outside.outside_of_jit(outside(name, 3), 10.0))) == 1
    assert list(_outside.outside_of_jit(outside("scan", 4, line=None), 10.0)) == []
    miss = Miss("scan", F, "first-call")
    assert list(_outside.outside_of_jit(outside("scan", 4, miss=miss), 10.0)) == []
    # By line and by operation.
    mixed = [*outside("scan", 2), *outside("scan", 2, line=THERE), *outside("cond", 2)]
    assert list(_outside.outside_of_jit(mixed, 10.0)) == []


@pytest.mark.parametrize(
    ("expression", "inside", "fix"),
    [
        ("jax.vmap(f)(xs)", "main", "Write `eqx.filter_jit(jax.vmap(f))(xs)`."),
        ("jax.lax.scan(f, xs)", "main", "Call it in `main` under `eqx.filter_jit`."),
        ("lax.scan(f, xs)", "<module>", "Call it in a function under `eqx.filter_jit`"),
        ("xs[0]", "main", "Call it in `main` under `eqx.filter_jit`."),
        ("f(", "main", "Call it in `main` under `eqx.filter_jit`."),
        # 88 characters, and one more.
        (f"f({69 * 'x'})", "main", f"Write `eqx.filter_jit(f)({69 * 'x'})`."),
        (f"f({70 * 'x'})", "main", "Write `eqx.filter_jit(f)(...)`."),
    ],
)
def test_how_to_move_an_operation_into_jit(expression, inside, fix):
    found = _outside._fix(expression, inside)
    assert found.startswith(fix)
    end = " Create it once and call it as often as needed: it compiles as one program."
    assert found.endswith(end)
