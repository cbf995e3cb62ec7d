"""Only changes to values that a trace has read are reported."""

import functools as ft
import gc
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit.insight import captures, changed, snapshot, watch


RATE = 0.1
UNUSED = 1
TABLE = np.arange(4.0)
DEVICE_TABLE = jnp.arange(3)
SETTINGS = types.SimpleNamespace(lr=0.1, momentum=0.9)
NAMES = {"a": 1, "b": [2, 3]}
lr = "has the name of an attribute"


def deepest(x):
    return x * UNUSED


def helper(x):
    return deepest(x) * RATE


_alive = []


def take(f):
    """A snapshot of a function, which is kept alive."""
    _alive.append(f)
    return snapshot(f)


@pytest.fixture
def set_global(monkeypatch):
    return lambda name, value: monkeypatch.setitem(globals(), name, value)


def names(f):
    return [change.name for change in captures(f).changes]


KINDS = {
    "ours": eqx_fastjit.filter_jit,
    "equinox": eqx.filter_jit,
    "jax": jax.jit,
    "plain": lambda f: f,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_global(kind, set_global):
    def f(x):
        return x * RATE

    jitted = KINDS[kind](f)
    watch(jitted)
    jitted(jnp.ones(2))
    assert names(jitted) == []
    set_global("UNUSED", 2)
    set_global("RATE", 0.2)
    (change,) = captures(jitted).changes
    assert (change.name, change.kind, change.old, change.new) == (
        "RATE",
        "global",
        "0.1",
        "0.2",
    )
    assert change.file == __file__
    assert change.line == f.__code__.co_firstlineno + 1
    assert "RATE" in str(captures(jitted))
    set_global("RATE", 0.1)
    assert names(jitted) == []
    set_global("RATE", 1)
    assert names(jitted) == ["RATE"]


@pytest.mark.parametrize(
    ("old", "new"),
    [(1, 1.0), (1, True), (0.0, -0.0), ((1, 2), [1, 2]), ("a", b"a"), (None, 0)],
)
def test_types_and_bits_count(old, new, set_global):
    set_global("RATE", old)
    taken = take(lambda: RATE)
    assert changed(taken) == []
    set_global("RATE", new)
    assert len(changed(taken)) == 1


def test_nan_is_the_same_nan(set_global):
    set_global("RATE", float("nan"))
    taken = take(lambda: RATE)
    set_global("RATE", float("nan"))
    assert changed(taken) == []


def test_helpers_are_followed_two_levels(set_global):
    taken = take(lambda x: helper(x))
    set_global("UNUSED", 5)
    (change,) = changed(taken)
    assert (change.name, change.function) == ("UNUSED", "deepest")
    assert change.line == deepest.__code__.co_firstlineno + 1


def test_a_helper_of_the_third_level_is_not_followed(set_global):
    def third(x):
        return x * RATE

    def second(x):
        return third(x) + UNUSED

    def first(x):
        return second(x)

    taken = take(lambda x: first(x))
    set_global("RATE", 5)
    assert changed(taken) == []
    set_global("UNUSED", 5)
    assert [c.name for c in changed(taken)] == ["UNUSED"]


def test_the_first_line_that_reads_it_is_named(set_global):
    def f(x):
        x = x + 1
        x = x * RATE
        return x - RATE * SETTINGS.lr

    def g(x):
        def inside():
            return x * RATE

        return inside() + RATE

    for function, line in ((f, 2), (g, 4)):
        set_global("RATE", 0.1)
        taken = take(function)
        set_global("RATE", 0.2)
        (change,) = changed(taken)
        assert change.name == "RATE"
        assert change.line == function.__code__.co_firstlineno + line


def test_a_redefined_helper(set_global):
    taken = take(lambda x: deepest(x))
    set_global("deepest", types.FunctionType(deepest.__code__, globals(), "deepest"))
    (change,) = changed(taken)
    assert change.name == "deepest" and change.new.startswith("another deepest")


def test_closure_cells_and_defaults():
    scale = 2
    seen = []

    def f(x, *, offset=3, acc=seen):
        def inner():
            return [scale for _ in range(1)]

        return x * inner()[0] + offset

    taken = snapshot(f)
    assert changed(taken) == []
    scale = 3
    (change,) = changed(taken)
    assert (change.name, change.kind) == ("scale", "closure")
    assert change.line == f.__code__.co_firstlineno + 2
    seen.append(1)
    f.__kwdefaults__["offset"] = 4
    found = {c.name: (c.kind, c.old, c.new) for c in changed(taken)}
    assert found["offset"] == ("default", "3", "4")
    assert found["acc"] == ("default", "[]", "[1]")


def test_a_deleted_global(set_global, monkeypatch):
    taken = take(lambda: RATE)
    monkeypatch.delitem(globals(), "RATE")
    assert [c.new for c in changed(taken)] == ["<deleted>"]


def test_attributes_of_plain_objects(monkeypatch):
    taken = take(lambda x: x * SETTINGS.lr)
    monkeypatch.setattr(SETTINGS, "momentum", 0.5)  # not read by the function
    assert changed(taken) == []
    monkeypatch.setattr(SETTINGS, "lr", 0.2)
    (change,) = changed(taken)
    assert (change.name, change.kind, change.old, change.new) == (
        "SETTINGS.lr",
        "attribute",
        "0.1",
        "0.2",
    )
    module = types.ModuleType("settings")
    module.rate = 1

    def f(x):
        return x * module.rate

    taken = snapshot(f)
    module.rate = 2
    assert [c.name for c in changed(taken)] == ["module.rate"]


def test_arrays(set_global):
    taken = take(lambda: (TABLE, DEVICE_TABLE))
    assert changed(taken) == []
    set_global("TABLE", TABLE.copy())
    assert changed(taken) == []  # NumPy arrays are compared by their contents
    TABLE[1] = 7
    (change,) = changed(taken)
    assert change.name == "TABLE" and change.new == "float64[4], changed"
    assert "7" not in change.new and "7" not in change.old
    set_global("DEVICE_TABLE", jnp.arange(3))
    assert {c.name for c in changed(taken)} == {"DEVICE_TABLE", "TABLE"}
    large = np.zeros((500, 500))
    taken = take(lambda: large)
    large += 1
    assert len(changed(taken)) == 1


def test_containers():
    taken = take(lambda: NAMES["a"])
    NAMES["b"].append(4)
    try:
        (change,) = changed(taken)
        assert change.old == "{'a': 1, 'b': [2, 3]}"
    finally:
        NAMES["b"].pop()
    assert changed(taken) == []
    many = list(range(10_000))
    taken = take(lambda: many)
    many.append(1)
    assert len(changed(taken)) == 1


def test_an_attribute_is_not_a_global_of_that_name(set_global):
    taken = take(lambda: SETTINGS.lr)
    set_global("lr", "changed")
    assert changed(taken) == []


def test_a_variable_of_a_function_is_no_global_of_that_name(set_global):
    """A local variable may have the name of a global, as in most training loops."""
    for name in ("RATE", "UNUSED", "TABLE"):
        set_global(name, 1.0)

    @eqx_fastjit.filter_jit
    def make_step(RATE, UNUSED):
        def loss(w):
            TABLE = w * UNUSED

            class Scaled:
                UNUSED = 2 * RATE
                twice = UNUSED

            return sum([TABLE * RATE for _ in range(2)]) * Scaled.twice

        return jax.value_and_grad(loss)(RATE)

    make_step(jnp.asarray(1.0), jnp.asarray(2.0))
    for name in ("RATE", "UNUSED", "TABLE"):
        set_global(name, 2.0)
    assert names(make_step) == []


def test_a_name_read_as_both(set_global):
    def f(UNUSED):
        def inside():
            return UNUSED + globals_too()

        def globals_too():
            global RATE
            return RATE

        return inside()

    taken = take(f)
    set_global("UNUSED", 7)
    assert changed(taken) == []
    set_global("RATE", 7)
    assert [c.name for c in changed(taken)] == ["RATE"]


def test_cells_of_the_functions_around(set_global):
    scale = 2
    set_global("scale", "a global of that name")

    def f(x):
        class Inside:
            twice = scale * 2

            def value(self):
                return x * scale

        return Inside().value()

    taken = take(f)
    set_global("scale", "another")
    assert changed(taken) == []
    scale = 3
    (change,) = changed(taken)
    assert (change.name, change.kind) == ("scale", "closure")


def test_numpy_scalars_are_shown_with_their_values(set_global):
    set_global("RATE", np.float32(0.5))
    taken = take(lambda: RATE)
    assert changed(taken) == []
    set_global("RATE", np.float32(0.25))
    (change,) = changed(taken)
    assert (change.old, change.new) == ("0.5 (float32)", "0.25 (float32)")
    set_global("RATE", np.bool_(True))
    assert [c.new for c in changed(taken)] == ["True (bool)"]


def test_settings_of_libraries_are_not_the_programs(monkeypatch):
    def f(x):
        return x if pytest.depth else -x

    monkeypatch.setattr(pytest, "depth", 1, raising=False)
    taken = take(f)
    monkeypatch.setattr(pytest, "depth", 2)
    assert changed(taken) == []


def test_modules_methods_and_partials(set_global):
    class Model(eqx.Module):
        w: jax.Array

        def __call__(self, x):
            return self.w * x * RATE

        @eqx_fastjit.filter_jit
        def method(self, x):
            return x * RATE

        @eqx.filter_jit
        def theirs(self, x):
            return x * RATE

    m = Model(jnp.ones(2))
    callables = [
        m,
        eqx_fastjit.filter_jit(m),
        eqx.filter_jit(m),
        m.method,
        m.theirs,
        ft.partial(helper, 1),
    ]
    for f in callables:
        watch(f)
    set_global("RATE", 3.0)
    for f in callables:
        assert names(f) == ["RATE"], f


def test_nothing_is_kept_alive(set_global):
    class Large:
        pass

    large, array = Large(), jnp.ones(3)

    def f():
        return large, array, table

    table = np.zeros(1000)
    watch(f)
    taken = snapshot(f)
    refs = [weakref.ref(x) for x in (large, array, table, f)]
    large = array = table = None
    assert len(changed(taken)) == 3
    del f
    gc.collect()
    assert [ref() for ref in refs] == [None] * 4
    assert changed(taken) == []


def test_attributes_of_attributes_are_left_out():
    """An object may refer to itself."""
    from eqx_fastjit.insight import _stand_ins

    settings = types.SimpleNamespace(lr=0.1)
    settings.parent = settings
    value = _stand_ins.value_of(settings, frozenset({"lr", "parent"}))
    assert set(value.attributes) == {"lr", "parent"}
    assert value.attributes["parent"].attributes == {}


def test_hostile_objects_do_not_raise(set_global):
    class Hostile:
        def __eq__(self, other):
            raise RuntimeError

        def __repr__(self):
            raise RuntimeError

        def __hash__(self):
            raise RuntimeError

        def __getattr__(self, name):
            raise RuntimeError

    set_global("RATE", Hostile())
    taken = take(lambda: RATE)
    assert changed(taken) == []
    set_global("RATE", [Hostile()])
    assert [c.new for c in changed(taken)] == [f"[a {Hostile.__qualname__}]"]
    loop = []
    loop.append(loop)
    set_global("RATE", loop)
    taken = take(lambda: RATE)
    assert changed(taken) == []
    for nonsense in (3, None, int, max, "text"):
        assert changed(snapshot(nonsense)) == []
        watch(nonsense)


def test_snapshots_by_trace(set_global):
    def f(x):
        return x * RATE

    watch(f, "first")
    set_global("RATE", 0.2)
    watch(f, "second")
    (change,) = captures(f).changes
    assert change.old == "0.1"
    watch(f, "first")
    assert names(f) == []
    for i in range(100):
        watch(f, i)
    assert captures(f).snapshots <= 16


def test_a_trace_is_watched_by_itself(set_global):
    @eqx_fastjit.filter_jit
    def f(x):
        return x * RATE

    f(jnp.ones(2))
    assert names(f) == []
    set_global("RATE", 0.2)
    (change,) = captures(f).changes
    assert (change.name, change.old, change.new) == ("RATE", "0.1", "0.2")


def test_bad_input():
    with pytest.raises(ValueError, match=r"it is not known what .*lambda"):
        captures(lambda: 1)
    with pytest.raises(TypeError, match="expected a function; got a int"):
        captures(3)


class Policy(eqx.Module):
    weights: jax.Array

    def __call__(self, x):
        traced.append(x.shape)
        COUNTS.calls += 1
        return self.scaled(x) + jnp.sum(self.weights)

    def scaled(self, x):
        return x * SCALE / COUNTS.temperature

    def never_called(self):
        return jnp.ones(()) * OTHER


SCALE = 2.0
OTHER = 3.0
COUNTS = types.SimpleNamespace(calls=0, temperature=1.0)
traced = []


def test_methods_of_arguments(set_global, monkeypatch):
    f = eqx_fastjit.filter_jit(lambda policy, x: policy(x))
    policy = Policy(jnp.ones(2))
    f(policy, jnp.ones(2))
    assert names(f) == []
    set_global("OTHER", 4.0)
    assert names(f) == []
    set_global("SCALE", 5.0)
    monkeypatch.setattr(COUNTS, "temperature", 0.5)
    assert sorted(names(f)) == ["COUNTS.temperature", "SCALE"]
    f(policy, jnp.ones(3))
    found = {change.name: change for change in captures(f).changes}
    assert (found["SCALE"].old, found["SCALE"].new) == ("2.0", "5.0")
    assert found["SCALE"].function == "Policy.scaled"


def test_functions_that_are_handed_in(set_global):
    @eqx_fastjit.filter_jit
    def apply(f, x):
        return jax.lax.fori_loop(0, 3, lambda _, y: f(y), x)

    apply(_scaled, jnp.ones(2))
    set_global("SCALE", 7.0)
    assert names(apply) == ["SCALE"]


def _scaled(x):
    return x * SCALE
