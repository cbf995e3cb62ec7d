"""The suggested edit of the user's own line."""

import linecache
import textwrap

import pytest

from eqx_fastjit.insight import _edits
from eqx_fastjit.insight._advice import advice, find_call
from eqx_fastjit.insight._differences import Difference


pytestmark = pytest.mark.one_engine


PROGRAM = """
    import equinox as eqx

    class Model(eqx.Module):
        def __init__(self):
            self.scale = jnp.array(1.0)
            self.twice = 1
            self.twice = 2

        @eqx.filter_jit
        def act(self, obs, epsilon, *, mode="a"):
            return obs

    @eqx.filter_jit
    @other
    def step(params, state, lr=0.1):
        return params

    def train(model, params, config):
        state = jnp.asarray(0.0)
        for i in range(3):
            state = step(params, state, lr=config.lr * i)
            model.act(obs, get(i)[0], mode="b")
            step(*params); step(params, *rest)
            step(1, 2) + step(3, 4)
            step(
                params,
                state,
                a_long_name_for_the_learning_rate_of_this_step(config, i, step=i, n=10),
            )
            step(model, opt.inner, lr=9)

    def other_function():
        opt = jnp.asarray(0.0)
        carried = jnp.asarray(0.0)

    def given(carried):
        carried = step(1, carried, lr=7)
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    linecache.checkcache(str(path))
    return str(path)


def line_of(file, text):
    return next(i for i, x in enumerate(linecache.getlines(file), 1) if text in x)


def say(file, kind, leaf, old, new, at, function="step", defined="@eqx.filter_jit\n@o"):
    text = "".join(linecache.getlines(file))
    first = text[: text.index(defined)].count("\n") + 1
    return advice(
        kind,
        Difference(leaf, "", old, new, "float32"),
        site=(file, line_of(file, at)),
        function=function,
        defined=(file, first),
    )


def test_numbers_that_change(file):
    text = say(file, "static-churn", "lr", "0.1 (float)", "0.2 (float)", "lr=config")
    assert "Write `step(params, state, lr=jnp.asarray(config.lr * i))`." in text
    text = say(file, "static-churn", "lr", "1 (int)", "0.2 (float)", "lr=config")
    assert "Write `step(params, state, lr=float(config.lr * i))`." in text
    method = {"function": "act", "defined": "    @eqx.filter_jit"}
    text = say(
        file, "static-churn", "epsilon", "1 (int)", "2 (int)", "model.act", **method
    )
    assert "Write `model.act(obs, jnp.asarray(get(i)[0]), mode='b')`." in text
    # No edit is suggested there.
    text = say(file, "static-churn", "mode", "'a' (str)", "'b' (str)", "model.act")
    assert text.startswith("A text is static")


def test_a_long_call_is_not_written_out(file):
    text = say(file, "static-churn", "lr", "1 (int)", "2 (int)", "a_long_name")
    assert text.startswith("Write `jnp.asarray(a_long_name_for_the_learning_rate")
    assert "`. A number" in text and "params" not in text


def test_where_it_is_first_made(file):
    text = say(file, "weak-type", "state", "True", "False", "lr=config")
    line = line_of(file, "state = jnp.asarray(0.0)")
    edit = f"Write `state = jnp.asarray(0.0, dtype=jnp.float32)` in line {line}."
    assert text.startswith(edit)
    line = line_of(file, "self.scale = ")
    text = say(file, "weak-type", "params.scale", "True", "False", "lr=config")
    assert f"`self.scale = jnp.asarray(1.0, dtype=jnp.float32)` in line {line}." in text
    text = say(file, "dtype-churn", "params.twice", "int32", "float32", "lr=config")
    assert "by `jnp.asarray(params.twice, dtype=jnp.float32)`, where" in text
    assert "where `params` is created" in text


def test_as_the_caller_has_it(file):
    """Expressions are those at the call, not the names of the function's parameters."""
    text = say(file, "weak-type", "params.a", "weak", "strong", "lr=9")
    cast = "jnp.asarray(model.a, dtype=jnp.float32)"
    assert f"Replace `model.a` by `{cast}`, where `model` is created." in text
    text = say(file, "weak-type", "state.b[0]", "weak", "strong", "lr=9")
    assert text.startswith("Replace `opt.inner.b[0]` by")
    method = {"function": "act", "defined": "    @eqx.filter_jit"}
    text = say(file, "weak-type", "self.size", "weak", "strong", "model.act", **method)
    assert text.startswith("Replace `model.size` by")
    # The leaf was set to a weakly typed value between the calls.
    text = say(file, "weak-type", "params.a", "strong", "weak", "lr=9")
    assert f"by `{cast}`, where it is set. In a later call" in text


def test_variables_of_other_functions_are_not_meant(file):
    text = say(file, "weak-type", "state", "weak", "strong", "lr=7")
    edit = "step(1, jnp.asarray(carried, dtype=jnp.float32), lr=7)"
    assert text.startswith(f"Write `{edit}`.")


def test_what_becomes_weak_later(file):
    text = say(file, "weak-type", "state", "False", "True", "lr=config")
    edit = "step(params, jnp.asarray(state, dtype=jnp.float32), lr=config.lr * i)"
    assert f"Write `{edit}`. In a later call" in text


def test_keys_and_settings(file):
    text = say(file, "dtype-churn", "lr", "uint32", "key<fry>", "lr=config")
    assert "in one way" in text and "astype" not in text and "dtype=" not in text
    text = say(file, "dtype-churn", "lr", "key<fry>", "key<rbg>", "lr=config")
    assert "one implementation" in text
    text = say(file, "config-churn", "jax_enable_x64", "False", "True", "lr=config")
    assert text == "Set `jax_enable_x64` once, before the first call."


@pytest.mark.parametrize("at", ["step(*params)", "step(1, 2)"])
def test_several_calls_on_a_line(file, at):
    assert find_call((file, line_of(file, at)), "step", None) is None
    text = say(file, "static-churn", "lr", "1 (int)", "2 (int)", at)
    assert "Replace `lr` by `jnp.asarray(lr)`." in text


def test_no_source():
    assert find_call(("/no/such/file.py", 3), "f", None) is None
    assert find_call(None, "f", None) is None
    text = advice("static-churn", Difference("n", "", "1 (int)", "2 (int)"))
    assert text.startswith("Replace `n` by `jnp.asarray(n)`.")


@pytest.mark.parametrize(
    ("old", "new", "edit", "why"),
    [
        ("1 (int)", "1.0 (float)", "float(x)", "int to float"),
        ("True (bool)", "1 (int)", "int(x)", "bool to int"),
        ("2.0 (numpy.float32)", "1 (int)", "float(x)", "float to int"),
        ("1 (int)", "2 (int)", "jnp.asarray(x)", "is static"),
        ("1 (int)", "float32(3,)", "jnp.asarray(x)", "is static"),
        ("float32(3,)", "1 (int)", "jnp.asarray(x)", "is static"),
        ("1 (int)", "'mean' (str)", None, ""),
        ("'mean' (str)", "1 (int)", None, ""),
        ("'mean' (str)", "'sum' (str)", None, ""),
    ],
)
def test_what_to_do_about_a_number(old, new, edit, why):
    found = _edits.static_edit(Difference("x", "static", old, new))
    if edit is None:
        assert found is None
    else:
        assert found.wrap("x") == edit and why in found.why


ALIASES = """
    class Trainer:
        def __init__(self, model):
            self.model = model
            self._step = eqx.filter_jit(self.update)
            self.plain = jit(fun=other)

        def update(model, x):
            return model

        def fit(self, x):
            self.model = self._step(self.model, jnp.asarray(x))
            self.plain(self.model, x)
"""


def test_a_function_that_has_another_name_where_it_is_called(file):
    with open(file, "w") as f:
        f.write(textwrap.dedent(ALIASES))
    linecache.checkcache(file)
    defined = "    def update("
    method = {"function": "update", "defined": defined}
    at = "self._step(self"
    text = say(file, "dtype-churn", "x", "float32", "float16", at, **method)
    # An existing cast is replaced, not nested in another one.
    assert "Write `self._step(self.model, jnp.asarray(x, dtype=jnp.float32))`" in text
    site = file, line_of(file, "self.plain(self")
    assert find_call(site, "update", None) is None


def test_what_the_function_returns(file):
    difference = Difference("state", "dtype", "bfloat16", "float32", "float32")
    site = file, line_of(file, "state = step(params, state, lr=config")
    defined = file, line_of(file, "@other") - 1
    text = advice(
        "dtype-churn",
        difference,
        site=site,
        function="step",
        defined=defined,
        fed_back=True,
    )
    line = line_of(file, "state = jnp.asarray(0.0)")
    assert text == (
        f"Write `state = jnp.asarray(0.0, dtype=jnp.float32)` in line {line}. The "
        "initial value is bfloat16, and the function returns float32."
    )


ITEMS = """
    def step(tree):
        return tree

    def train(start):
        state = {"loss": 0.0, "n": [jnp.asarray(0), start]}
        carry = Carry(0.0, total=jnp.array(1.0), parts=dict(a=1.0))
        for i in range(3):
            state = step(state)
            carry = step(carry)
            start = step(start)
"""


@pytest.mark.parametrize(
    ("leaf", "at", "expected"),
    [
        ("['loss']", "step(state)", "Write `'loss': jnp.asarray(0.0, dtype"),
        ("['n'][0]", "step(state)", "Write `jnp.asarray(0, dtype=jnp.float32)` in"),
        ("['n'][2]", "step(state)", "Replace `state['n'][2]` by"),
        ("['m']", "step(state)", "Replace `state['m']` by"),
        (".total", "step(carry)", "Write `total=jnp.asarray(1.0, dtype"),
        (".parts['a']", "step(carry)", "Write `a=jnp.asarray(1.0, dtype"),
        (".other", "step(carry)", "Replace `carry.other` by"),
        ("<static>", "step(carry)", "Write `carry = jax.tree.map(lambda x"),
        ("['loss']", "step(start)", "Replace `start['loss']` by"),
    ],
)
def test_where_an_element_is_written_out(file, leaf, at, expected):
    with open(file, "w") as f:
        f.write(textwrap.dedent(ITEMS))
    linecache.checkcache(file)
    root = at.removeprefix("step(").removesuffix(")")
    names = {"function": "step", "defined": "def step("}
    text = say(file, "weak-type", f"tree{leaf}", "weak", "strong", at, **names)
    assert text.startswith(expected), text
    if text.startswith("Write"):
        made = "state = {" if root == "state" else "carry = Carry"
        assert f"in line {line_of(file, made)}." in text


FIRST_CALLS = """
    def step(state, beta):
        return state

    state = step(jnp.zeros(()), jnp.asarray(0))
    for i in range(3):
        state = step(state, jnp.asarray(0.5))
"""


@pytest.mark.parametrize(
    ("kind", "leaf", "old", "new", "expected"),
    [
        ("dtype-churn", "beta", "int32", "float32", "jnp.asarray(0, dtype=jnp.float32"),
        ("weak-type", "state", "weak", "strong", "jnp.asarray(jnp.zeros(()), dtype="),
        ("dtype-churn", "beta", "float32", "float16", "step(state, jnp.asarray(0.5, "),
    ],
)
def test_an_earlier_call_that_is_at_fault(file, kind, leaf, old, new, expected):
    with open(file, "w") as f:
        f.write(textwrap.dedent(FIRST_CALLS))
    linecache.checkcache(file)
    first = file, line_of(file, "jnp.zeros")
    text = advice(
        kind,
        Difference(leaf, "", old, new, "float32"),
        site=(file, line_of(file, "0.5")),
        function="step",
        defined=(file, line_of(file, "def step")),
        earlier=first,
    )
    assert expected in text
    assert (f"in line {first[1]}." in text) is (old != "float32")


@pytest.mark.parametrize(
    ("edit", "argument", "expected"),
    [
        ("jax.device_put({}, new)", "x[0]", "jax.device_put(x[0], new)"),
        (
            "jax.device_put({}, new)",
            "jax.device_put(jnp.ones(4), old)",
            "jax.device_put(jnp.ones(4), new)",
        ),
        (
            "jax.device_put({}, new)",
            "device_put(x)",
            "jax.device_put(device_put(x), new)",
        ),
        ("jnp.asarray({}, dtype=d)", "jnp.asarray(x)", "jnp.asarray(x, dtype=d)"),
        ("jnp.asarray({})", "jnp.asarray(obj=x)", "jnp.asarray(jnp.asarray(obj=x))"),
        (
            "jax.tree.map(f, {})",
            "jax.tree.map(g, x)",
            "jax.tree.map(f, jax.tree.map(g, x))",
        ),
        ("float({})", "a b", "float(a b)"),
    ],
)
def test_an_edit_of_a_call_of_the_same_function(edit, argument, expected):
    assert _edits.Edit(edit, "").wrap(argument) == expected
