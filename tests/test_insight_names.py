"""Which line, call and expression of the source advice names, word for word."""

import ast
import linecache
import types

import pytest

from eqx_fastjit.insight import _advice, _differences
from eqx_fastjit.insight._advice import (
    advice,
    find_assignment,
    find_call,
    find_item,
    plain_advice,
)
from eqx_fastjit.insight._differences import Difference


pytestmark = pytest.mark.one_engine


PROGRAM = """\
import jax
step = lambda state, rate: state
class Net:
    def step(self, x, /, y, *, z=1):
        return x
    @jax.jit
    @other
    def step(self, a, b=2):
        return a
@jax.jit
def run(w, lr, *rest, mode="a"):
    return w
scale = 1.0
w = lr = 2.0
def train(w, c):
    scale = [
        2.0]
    def inside():
        scale = 3.0
    for lr in range(3):
        net.step(c, scale); out = run(w, *c, lr, lr, mode=scale)
    net.out = {"a": (1.0, scale), 2: Opt(mu=0.5, **c)}
    alias = wrap(run)
    alias(w, scale, 1, mode=w, **c)
    pair, other = run(
        w,
        lr=scale)
    late = State(1.0, [2.0])
    run(late, jax.numpy.asarray(3.0, "float32"))
    run(late, jax.numpy.array(3.0))
    scale = 4.0
    step(scale, 5)
    net.step(scale, 5)
    run(net.out, 6)
run(scale, w)
run(net.deep.out, scale)
made = {"a": (1.0, [scale, late]), 2: Opt(7, mu=0.5, **c)}
run(made, 1)
aliased = self.other = partial(run, 1)
self.other(2, 3)
def defaults(w, lr=5, *made, **scale):
    run(made, scale)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    linecache.checkcache(str(path))
    return str(path)


@pytest.mark.parametrize(
    ("line", "name", "defined", "arguments", "receiver"),
    [
        # Two methods of one name: the line of the definition decides.
        (21, "step", 4, {"x": 0, "y": 1}, "net"),
        (21, "step", 6, {"a": 0, "b": 1}, "net"),
        (21, "step", 7, {"a": 0, "b": 1}, "net"),
        (21, "step", 8, {"a": 0, "b": 1}, "net"),
        (21, "step", 9, {}, None),
        (21, "run", 9, {"mode": "mode"}, None),
        # A lambda; and a function that is no method, called as if it were one.
        (32, "step", 2, {"state": 0, "rate": 1}, None),
        (33, "step", 2, {"state": 0, "rate": 1}, None),
        (32, "step", 3, {}, None),
        (32, "step", 8, {"self": 0, "a": 1}, None),
        # What follows `*c` cannot be told.
        (21, "run", 10, {"w": 0, "mode": "mode"}, None),
        (21, "run", None, {"mode": "mode"}, None),
        (24, "run", 11, {"w": 0, "lr": 1, "mode": "mode"}, None),
        (40, "run", 11, {"w": 0, "lr": 1}, None),
        # All lines of a call are its own.
        (25, "run", 10, {"w": 0, "lr": "lr"}, None),
        (27, "run", 10, {"w": 0, "lr": "lr"}, None),
    ],
)
def test_which_call(file, line, name, defined, arguments, receiver):
    call = find_call((file, line), name, defined and (file, defined))
    assert call is not None
    passed = {k.arg: k.value for k in call.node.keywords}
    passed.update(enumerate(call.node.args))
    assert call.arguments == {name: passed[at] for name, at in arguments.items()}
    assert call.receiver == receiver


@pytest.mark.parametrize("line", [3, 22, 28, 31])
def test_no_call(file, line):
    assert find_call((file, line), "run", (file, 10)) is None


@pytest.mark.parametrize(
    ("line", "name", "found"),
    [
        # The last assignment above the line that is complete, in this function or, if
        # it has none, in the one around it.
        *((21, "scale", 16), (31, "scale", 16), (32, "scale", 31), (17, "scale", 13)),
        *((18, "scale", 16), (19, "scale", 16), (35, "scale", 13), (14, "scale", 13)),
        *((13, "scale", None), (29, "late", 28), (28, "late", None)),
        # Not with other variables at once; and an argument is made by the caller.
        *((35, "w", None), (30, "pair", None), (32, "c", None), (21, "w", None)),
        *((42, "w", None), (42, "lr", None), (42, "made", None), (42, "scale", None)),
    ],
)
def test_which_assignment(file, line, name, found):
    assigned = find_assignment((file, line), name)
    assert (None if assigned is None else assigned.lineno) == found
    assert find_assignment(None, name) is None


@pytest.mark.parametrize(
    ("rest", "found"),
    [
        ("['a'][0]", ("", "1.0")),
        ("['a'][1][1]", ("", "late")),
        ("['a'][1][2]", None),
        ("['b']", None),
        ("[2].mu", ("mu=", "0.5")),
        ("[2].nu", None),
        ("[2]", ("2: ", "Opt(7, mu=0.5, **c)")),
        ("['a']", ("'a': ", "(1.0, [scale, late])")),
        ("['a'].mu", None),
        ("<static>", None),
        ("(1)", ("", ast.unparse(ast.parse(PROGRAM.splitlines()[36]).body[0].value))),
    ],
)
def test_which_element(file, rest, found):
    item = find_item((file, 38), "made", rest)
    assert (item and (item.name, ast.unparse(item.value))) == found
    assert find_item((file, 37), "made", rest) is None


def test_which_attribute(file):
    assert _advice.find_attribute((file, 1), "a[0].out").lineno == 22
    for leaf in ("out", "a.none", "a[0]", "a.0"):
        assert _advice.find_attribute((file, 1), leaf) is None
    assert _advice.find_attribute(None, "a.out") is None


FIRST = "In the first call it comes from a Python number, and is weakly typed."
LATER = "In a later call it comes from a Python number, and is weakly typed."
SHARDING = "Use one sharding for all calls, or fix `in_shardings` and `out_shardings`."
NUMBER = (
    "A number that is not an array is static, and each new value recompiles. (If "
    "shapes or an `if` depend on it, it has to stay static.)"
)


@pytest.mark.parametrize(
    ("kind", "leaf", "change", "lines", "said"),
    [
        (
            "static-churn",
            "w",
            "1 (int)|2 (int)",
            (27, None),
            f"Write `run(jnp.asarray(w), lr=scale)`. {NUMBER}",
        ),
        (
            "static-churn",
            "lr",
            "1 (int)|2 (int)",
            (27, None),
            f"Write `run(w, lr=jnp.asarray(scale))`. {NUMBER}",
        ),
        (
            "static-churn",
            "w[0]",
            "1 (int)|2j (complex)",
            (36, 35),
            (
                "Replace `net.deep.out[0]` by `complex(net.deep.out[0])`, where "
                "it is set. Its type changed, int to complex."
            ),
        ),
        (
            "weak-type",
            "w",
            "True|False",
            (35, None),
            (
                "Write `scale = jnp.asarray(1.0, dtype=jnp.float32)` in line 13. "
                f"{FIRST}"
            ),
        ),
        (
            "weak-type",
            "lr",
            "weak|strong",
            (29, None),
            (
                "Write `run(late, jnp.asarray(jax.numpy.asarray(3.0, 'float32'), "
                f"dtype=jnp.float32))`. {FIRST}"
            ),
        ),
        (
            "weak-type",
            "lr",
            "weak|strong",
            (30, None),
            f"Write `run(late, jnp.asarray(3.0, dtype=jnp.float32))`. {FIRST}",
        ),
        (
            "weak-type",
            "lr",
            "strong|weak",
            (30, 35),
            f"Write `run(late, jnp.asarray(3.0, dtype=jnp.float32))`. {LATER}",
        ),
        (
            "weak-type",
            "w['a'][0]",
            "weak|strong",
            (38, None),
            f"Write `jnp.asarray(1.0, dtype=jnp.float32)` in line 37. {FIRST}",
        ),
        (
            "weak-type",
            "w.out",
            "weak|strong",
            (36, None),
            (
                "Write `net.out = jnp.asarray({'a': (1.0, scale), 2: Opt(mu=0.5, "
                "**c)}, dtype=jnp.float32)` in line 22. "
            )
            + FIRST,
        ),
        (
            "weak-type",
            "w.out",
            "strong|weak",
            (36, 35),
            (
                "Replace `net.deep.out.out` by `jnp.asarray(net.deep.out.out, "
                f"dtype=jnp.float32)`, where it is set. {LATER}"
            ),
        ),
        (
            "weak-type",
            "q.z",
            "True|False",
            (36, 35),
            (
                "Replace `q.z` by `jnp.asarray(q.z, dtype=jnp.float32)`, where `q` "
                f"is created in line 35. {FIRST}"
            ),
        ),
        (
            "weak-type",
            "q",
            "True|False",
            (36, 36),
            f"Replace `q` by `jnp.asarray(q, dtype=jnp.float32)`. {FIRST}",
        ),
        (
            "weak-type",
            "q",
            "False|True",
            (36, 35),
            f"Replace `q` by `jnp.asarray(q, dtype=jnp.float32)`. {LATER}",
        ),
        (
            "dtype-churn",
            "lr",
            "int32|float16",
            (36, 35),
            (
                "Write `run(scale, jnp.asarray(w, dtype=jnp.float16))` in line 35. "
                "The initial value has integers, and later values do not."
            ),
        ),
        (
            "dtype-churn",
            "lr",
            "float16|float32",
            (36, 35),
            (
                "Write `scale = jnp.asarray(1.0, dtype=jnp.float16)` in line 13. "
                "Its dtype was float16, and then float32."
            ),
        ),
        (
            "dtype-churn",
            "lr",
            "bool|uint8",
            (36, 35),
            (
                "Write `scale = jnp.asarray(1.0, dtype=jnp.bool)` in line 13. Its "
                "dtype was bool, and then uint8."
            ),
        ),
        (
            "dtype-churn",
            "w",
            "float16|float32",
            (36, 38),
            (
                "Write `run(jnp.asarray(net.deep.out, dtype=jnp.float16), scale)`. "
                "Its dtype was float16, and then float32."
            ),
        ),
        (
            "sharding-churn",
            "w",
            "cpu:0|cpu:1",
            (36, 35),
            (f"Write `run(jax.device_put(net.deep.out, sharding), scale)`. {SHARDING}"),
        ),
        # Not the first call, which had what was wanted.
        (
            "sharding-churn",
            "w.k",
            "True|False",
            (36, 35),
            (
                "Replace `net.deep.out.k` by `jax.device_put(net.deep.out.k, "
                f"sharding)`, where `net.deep.out` is created. {SHARDING}"
            ),
        ),
        (
            "config-churn",
            "jax_x",
            "1|2",
            (36, 35),
            "Set `jax_x` once, before the first call.",
        ),
        ("shape-churn", "w", "(1,)|(2,)", (36, 35), _differences.ADVICE["shape-churn"]),
        (
            "static-churn",
            "w",
            "'a' (str)|1 (int)",
            (36, 35),
            _differences.ADVICE["static-churn"],
        ),
    ],
)
def test_what_to_do(file, kind, leaf, change, lines, said):
    site, earlier = [line and (file, line) for line in lines]
    old, new = change.split("|")
    found = advice(
        kind,
        Difference(leaf, "", old, new, "float32"),
        site=site,
        function="run",
        defined=(file, 10),
        earlier=earlier,
    )
    assert found == said


def test_what_the_function_has_returned(file):
    difference = Difference("w", "dtype", "float16", "float32", "float32")
    found = advice(
        "dtype-churn",
        difference,
        site=(file, 36),
        function="run",
        defined=(file, 10),
        earlier=(file, 38),
        fed_back=True,
    )
    assert found.startswith("Write `made = jnp.asarray({'a': (1.0, [scale, late]), 2: ")
    assert found.endswith(
        " in line 37. The initial value is float16, and the function returns float32."
    )


@pytest.mark.parametrize(("length", "whole"), [(88, True), (89, False)])
def test_how_long_a_call_may_be(length, whole):
    name = "x" * (length - len("run(w, float())"))
    node = ast.parse(f"run(w, {name})", mode="eval").body
    call = _advice.Call(node, dict(zip(("w", "lr"), node.args, strict=True)))
    edited = call.edited({"lr": "float({})".format})
    assert edited == (f"run(w, float({name}))" if whole else f"float({name})")
    assert ast.unparse(node) == f"run(w, {name})"  # not edited in place


@pytest.mark.parametrize(
    "text", ["x = = 1", "x = '\0'", "-" * 20_000 + "1", "1" + "+ 1" * 20_000]
)
def test_source_that_cannot_be_parsed(text, tmp_path):
    path = tmp_path / "source.py"
    path.write_text(text + "\nf(1)\n")
    linecache.checkcache(str(path))
    assert find_call((str(path), 2), "g", None) is None


@pytest.mark.parametrize(
    ("kind", "leaf", "old", "new", "dtype", "said"),
    [
        (
            "dtype-churn",
            "argument 1",
            "s32",
            "bf16",
            "bf16",
            (
                "Write `scale = jnp.asarray(1.0, dtype=jnp.bfloat16)` in line 13. "
                "The initial value has integers, and later values do not."
            ),
        ),
        (
            "dtype-churn",
            "argument 0",
            "c64",
            "u8",
            "u8",
            (
                "Write `run(jnp.asarray(net.deep.out, dtype=jnp.complex64), "
                "scale)`. Its dtype was complex64, and then uint8."
            ),
        ),
        (
            "dtype-churn",
            "argument 0",
            "i4",
            "pred",
            "i4",
            (
                "Write `run(jnp.asarray(net.deep.out, dtype=jnp.int4), scale)`. "
                "Its dtype was int4, and then bool_."
            ),
        ),
        (
            "weak-type",
            "argument 2",
            "weak",
            "strong",
            "pred",
            (
                "Replace `argument 2` by `jnp.asarray(argument 2, "
                f"dtype=jnp.bool_)`. {FIRST}"
            ),
        ),
        (
            "weak-type",
            "argument 1",
            "strong",
            "weak",
            "f8_e4",
            (
                "Write `run(net.deep.out, jnp.asarray(scale, dtype=jnp.f8_e4))`. "
                f"{LATER}"
            ),
        ),
        ("shape-churn", "", "1", "2", "f32", _differences.ADVICE["shape-churn"]),
        (
            "dtype-churn",
            "argument 1",
            "key<fry>",
            "key<rbg>",
            "",
            (
                "Create all keys with one implementation (`key<fry>` and "
                "`key<rbg>` were passed): `jax.random.key(seed, impl=...)`."
            ),
        ),
    ],
)
def test_what_to_do_under_plain_jit(file, kind, leaf, old, new, dtype, said):
    miss = types.SimpleNamespace(
        kind=kind, leaf=leaf, old=old, new=new, dtype=dtype, name="run"
    )
    found = plain_advice(miss, site=(file, 36), defined=(file, 10))
    assert found == said
