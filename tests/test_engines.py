"""The two engines, missing private names, and `install()`."""

import logging
import os
import re
import subprocess
import sys
import threading
import traceback
import types
import weakref
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import (
    _base,
    _callables,
    _compat,
    _engine,
    _logs,
    _nodes,
    _partition,
    _policy,
    filter_jit,
    insight,
)
from eqx_fastjit.insight import _profile_tree, _warm_call


def _python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def test_engine_is_what_was_asked_for(engine):
    assert eqx_fastjit.engine() == engine


def test_calls_go_to_c_without_a_tuple_of_arguments():
    """`Py_TPFLAGS_HAVE_VECTORCALL`: Python 3.11 does not pass it on to subclasses."""
    if _base._native is None:
        pytest.skip("no C extension")
    assert type(filter_jit(lambda x: x)).__flags__ & (1 << 11)


@pytest.mark.parametrize("ours", [True, False])
def test_the_guess_of_jax_is_corrected_for_our_functions_alone(ours):
    def filtered(msg):
        record = logging.makeLogRecord({"msg": msg})
        assert _logs._correct_guess(record, lambda: ours)
        return record.msg

    guess = f"MISS at line 1:\n{_logs._GUESS}\n"
    corrected = guess.replace(_logs._GUESS, _logs._INSTEAD)
    assert filtered(guess) == (corrected if ours else guess)
    assert filtered("something else") == "something else"
    other = ValueError("no text")
    assert filtered(other) is other


@pytest.mark.one_engine
def test_a_known_call_runs_no_python():
    """A cache hit runs no Python function, neither ours nor JAX's."""
    f = filter_jit(lambda m, x, n, *, key: (m, m(x) * n, key))
    m = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    g, identity = filter_jit(m), eqx.nn.Identity()
    k = jax.random.PRNGKey(0)
    calls = [
        lambda: f(m, X, 2, key=k),
        lambda: f(m, x=X, n=2.5, key=(k, "s", None)),
        lambda: f(identity, X, 2, key={"a": jnp.sin}),
        lambda: g(X),
    ]
    for call in calls * 3:
        call()
    ran = []
    for call in calls:
        sys.setprofile(
            lambda frame, event, _: ran.append(frame.f_code) if event == "call" else 0
        )
        try:
            call()
        finally:
            sys.setprofile(None)
    assert {code.co_name for code in ran} == {"<lambda>"}


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("prefix", "numbers"),
    [
        ("NODE", _nodes.NodeKind),
        ("KIND", _policy.Kind),
        ("HASHABLE", _policy.Hashable),
    ],
)
def test_what_python_hands_over_has_the_numbers_of_the_c_source(prefix, numbers):
    source = (Path(__file__).parent.parent / "eqx_fastjit" / "_walk.h").read_text()
    (names,) = re.findall(rf"enum {{ ({prefix}_[\w\s,]+) }};", source)
    found = {name: int(n) for name, n in vars(numbers).items() if name.isupper()}
    assert [f"{prefix}_{name}" for name in found] == names.replace(",", " ").split()
    assert list(found.values()) == list(range(len(found)))


@pytest.fixture
def all_frames():
    """Turns off JAX's traceback filtering, which hides frames of JAX and of this
    package.
    """
    before = jax.config.jax_traceback_filtering
    jax.config.update("jax_traceback_filtering", "off")
    yield
    jax.config.update("jax_traceback_filtering", before)


def _ours(error):
    """Names and local variables of the package's frames in a traceback."""
    folder = str(Path(eqx_fastjit.__file__).parent)
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return {
        frame.f_code.co_qualname: frame.f_locals
        for frame in frames
        if frame.f_code.co_filename.startswith(folder)
    }


def test_tracebacks_of_pytest_leave_the_packages_frames_out(all_frames):
    class Fails(eqx.Module):
        def __call__(self, x, n=1):
            raise ZeroDivisionError

        method = filter_jit(__call__)

    m = Fails()
    function = filter_jit(lambda x, n=1: m(x, n))
    calls = [
        lambda: function(X),
        lambda: function(n=2, x=X),
        lambda: m.method(X),
        lambda: filter_jit(m)(X),
    ]
    for call in calls:
        with pytest.raises(ZeroDivisionError) as info:
            call()
        ours = _ours(info.value)
        assert "Flat.__call__" in ours
        hidden = {name: x.get("__tracebackhide__") for name, x in ours.items()}
        assert set(hidden.values()) == {True}, hidden


def _trail(values):
    """Identities of the arrays and the signature, as the Python engine finds them."""
    found = _partition.walk(values)
    return [id(x) for x in found.arrays], tuple(found.trail)


@pytest.mark.one_engine
@pytest.mark.parametrize("seed", range(20))
def test_the_native_walk_agrees_with_the_reference(seed):
    """Same arrays in the same order, and the same calls share a specialization."""
    native = _engine.native()
    rng = np.random.default_rng(seed)
    values = [_random_tree(rng, 4) for _ in range(12)]
    values += [jax.tree_util.tree_map(lambda x: x, v) for v in values]
    function = filter_jit(lambda x: 0)._function
    found = []
    for value in values:
        arrays = [id(x) for x in native.arrays_of((value,))]
        ids, trail = _trail((value,))
        assert arrays == ids
        found.append((trail, function.table.get(function, (value,))))
    for trail_a, a in found:
        for trail_b, b in found:
            assert (trail_a == trail_b) == (a is b)


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("static", "mutable"),
    [
        *((x, False) for x in (1, (1, 2), (1.0, (2, ("a",))), 1j, range(3))),
        *((x, False) for x in (slice(1), frozenset({1.0}), frozenset({(1,)}))),
        *((x, True) for x in ([], {1}, {"a": 1}, (1, (2.0, [3])), (({},), 1))),
        (eqx.nn.Dropout(0.5), True),  # `object.__setattr__` writes to it
    ],
    ids=repr,
)
def test_only_what_can_be_changed_is_looked_at_again(static, mutable):
    found = _partition.walk(_Layer(X, static, 1))
    assert len(found.mutable) == mutable
    for x, start, end in found.mutable:
        assert x is static
        assert _partition.same_trail(x, found.trail[start:end])


class _Layer(eqx.Module):
    weight: object
    size: object = eqx.field(static=True)
    other: object


def _random_tree(rng, depth):
    kind = rng.integers(8 if depth else 4)
    if kind == 0:
        return jnp.float32(rng.integers(3))
    if kind == 1:
        return rng.choice(np.array([1, 2.0, True, "a", None, (1, 2)], object))
    if kind == 2:
        return np.arange(rng.integers(3))
    if kind == 3:
        return [1, 1.0, True, -0.0, 0.0, "b", int, jnp.sin][rng.integers(8)]
    below = [_random_tree(rng, depth - 1) for _ in range(rng.integers(4))]
    if kind == 4:
        return below
    if kind == 5:
        return tuple(below)
    if kind == 6:
        keys = rng.permutation(len(below)).tolist()
        return {f"k{i}": x for i, x in zip(keys, below, strict=True)}
    size = [(1, 2), [1, {"a": 2.0}], 3, "s", None][rng.integers(5)]
    return _Layer(tuple(below), size, _random_tree(rng, depth - 1))


X = jnp.ones(2)


class _Pair:
    def __init__(self, *children):
        self.children = children


jax.tree_util.register_pytree_node(
    _Pair, lambda x: (x.children, ("pair", (1,))), lambda _, children: _Pair(*children)
)


@pytest.mark.parametrize("cls", [_Pair, lambda x, y: _Layer(x, (2,), y)])
def test_what_stands_for_an_array_makes_no_difference(cls):
    """Tracers, NumPy arrays and JAX arrays all use the same specialization."""
    traces = []

    @filter_jit
    def f(m):
        traces.append(1)
        return sum(jax.tree_util.tree_leaves(m)).sum()

    f(cls(X, X))
    f(cls(np.ones(2, np.float32), X))
    jax.vmap(lambda x, y: f(cls(x, y)), in_axes=(0, None))(jnp.ones((1, 2)), X)
    assert f._function.n_specializations() == 1
    assert len(traces) == 1


_FIRST_CALL = """
import equinox as eqx, jax.numpy as jnp, eqx_fastjit
class Layer(eqx.Module):
    weight: object
    size: tuple = eqx.field(static=True)
traces = []
f = eqx_fastjit.filter_jit(lambda m: traces.append(1))
for _ in range(2):
    f(Layer(jnp.ones(2), (2,)))
print(len(traces), eqx_fastjit.engine())
"""


def test_the_first_call_of_a_process_is_like_the_others(engine):
    """Also if that call is the first to see the type of JAX's arrays."""
    out = _python(_FIRST_CALL)
    assert out.stdout == f"1 {engine}\n", out.stderr


@pytest.fixture
def fresh(monkeypatch):
    """A state in which nothing has been wrapped, and the engine is chosen
    automatically.
    """
    monkeypatch.setattr(_engine, "_state", {})
    monkeypatch.setattr(_callables, "_functions", weakref.WeakKeyDictionary())
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", "auto")


@pytest.mark.one_engine
def test_without_the_registry_of_nodes(take_away, fresh, monkeypatch):
    """The Python engine is used, without a warning and with the right results."""
    take_away("jax._src.tree_util:_registry")
    _compat.node_registry.cache_clear()
    _engine._load_native.cache_clear()
    try:
        assert eqx_fastjit.engine() == "python"
        f = filter_jit(lambda m, x, n: (m(x) * n, m, {"n": n}))
        m = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
        for n in (2, 3, 2):
            out, same, static = f(m, X, n)
            assert eqx.tree_equal((out, same), (eqx.filter_jit(m)(X) * n, m))
            assert static == {"n": n}
        _registered_after_use(f)
        _differs_in_its_static_data()
        monkeypatch.setattr(_engine, "_state", {})
        monkeypatch.setenv("EQX_FASTJIT_ENGINE", "native")
        with pytest.raises(RuntimeError, match="EQX_FASTJIT_ENGINE=native, but"):
            filter_jit(lambda x: x)
    finally:
        monkeypatch.undo()
        _compat.node_registry.cache_clear()
        _engine._load_native.cache_clear()


def _registered_after_use(f):
    class Pair:
        def __init__(self, x):
            self.x = x

    g = filter_jit(lambda pair: pair.x * 2)
    pair = Pair(3)
    assert g(pair) == 6
    jax.tree_util.register_pytree_node(
        Pair, lambda p: ((p.x,), None), lambda _, xs: Pair(*xs)
    )
    pair.x = X
    assert g(pair).tolist() == [2, 2]


def _differs_in_its_static_data():
    class Scaled:
        def __init__(self, x, by):
            self.x, self.by = x, by

    jax.tree_util.register_pytree_node(
        Scaled, lambda s: ((s.x,), s.by), lambda by, xs: Scaled(*xs, by)
    )
    f = filter_jit(lambda scaled: scaled.x * scaled.by)
    for by in (2, 3, 2):
        assert f(Scaled(X, by)).tolist() == [by, by]


def test_a_type_that_becomes_a_node():
    _registered_after_use(None)


def test_a_jax_from_the_future():
    """Wrapping a function neither warns nor computes anything."""
    out = _python(
        "import warnings; warnings.simplefilter('error')\n"
        "import jax; jax.__version_info__ = (0, 99, 0); jax.__version__ = '0.99.0'\n"
        "import eqx_fastjit\n"
        "f = eqx_fastjit.filter_jit(lambda x, n: x * n)\n"
        "assert not jax._src.xla_bridge._backends\n"
        "print(f(jax.numpy.ones(2), 3).tolist(), eqx_fastjit.engine())",
        EQX_FASTJIT_ENGINE="auto",
    )
    assert out.stderr == ""
    assert out.stdout.split() == ["[3.0,", "3.0]", "native"]


@pytest.mark.parametrize(
    "name",
    [
        "equinox._jit:last_error_info",
        "equinox._jit:_on_error_msg",
        "equinox._caches:cache_clears",
        "jax._src.traceback_util:register_exclusion",
    ],
)
def test_a_missing_name_that_only_helps(name, take_away):
    take_away(name)
    _compat.hide_from_tracebacks("nowhere")
    _compat.on_clear_caches(lambda: None)
    _check_runtime_error(name)


def _check_runtime_error(name):
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, f"negative {name}"))
    f(jnp.array(1.0))
    with pytest.raises(eqx.EquinoxRuntimeError, match=f"negative {name}"):
        f(jnp.array(-1.0))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("equinox._jit:last_error_info", None),
        ("equinox._jit:last_error_info", ("message", [], "more")),
        ("equinox._jit:last_error_info", "message"),
        ("equinox._jit:_on_error_msg", "{stack} {msg} {more}"),
        ("equinox._jit:_on_error_msg", None),
    ],
)
def test_a_name_that_means_something_else(name, value, monkeypatch):
    resolve = _compat.resolve
    monkeypatch.setattr(
        _compat, "resolve", lambda path: value if path == name else resolve(path)
    )
    _check_runtime_error(name)


@pytest.mark.parametrize(
    "name", ["equinox._jit:_JitWrapper", "equinox._compile_utils:hashable_partition"]
)
def test_a_missing_name_that_only_insight_uses(name, take_away):
    take_away(name)
    theirs = eqx.filter_jit(lambda x: x * 2)
    missing = "_JitWrapper" in name
    assert (_compat.filter_jit_options(theirs) is None) == missing
    assert (_compat.equinox_partition() is None) == (not missing)
    x = jnp.ones(2)
    (leaf,) = insight.compare_eager(theirs, x).leaves
    assert leaf.absolute == 0
    assert insight.breakdown(theirs, x, rounds=3).steady


@pytest.mark.parametrize(
    "name",
    [
        "jax._src.callback:pure_callback_p",
        "jax._src.checkify:_INACTIVE_CODE",
        "jax._src.checkify:Error",
        "jax._src.checkify:FailedCheckError",
        "jax._src.checkify:checkify_jaxpr",
        "jax._src.checkify:error_checks",
        "jax._src.checkify:update_error",
        "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE",
        "jax._src.interpreters.pxla:UnloadedMeshExecutable",
        "jax._src.lax.lax:dce_sink_p",
        "jaxlib._jax:DeviceList",
    ],
)
@pytest.mark.filterwarnings("ignore:the native code in .* has no ")
def test_a_missing_name_that_only_exporting_uses(name, take_away, tmp_path):
    """The result is right, or one error says what is missing."""
    f = filter_jit(lambda x: eqx.error_if(x * 2, x.sum() < 0, "negative"))
    take_away(name)
    try:
        f.export(X).save(tmp_path / "f", compiled=True)
        out = eqx_fastjit.load(tmp_path / "f", trusted=True)(X)
    except (ValueError, _compat.MissingPrivateName) as e:
        assert str(e)
    else:
        assert out.tolist() == [2, 2]


class _Jitted:
    """What `jax.jit` returns, without its `_jit_info`."""

    def __init__(self, jitted):
        self.jitted = jitted

    def __getattr__(self, name):
        if name == "_jit_info":
            raise AttributeError(name)
        return getattr(self.jitted, name)


def test_attributes_that_only_insight_uses(monkeypatch):
    """Without these attributes there are no options, frames or names, and programs are
    called through JAX.
    """
    jitted = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert _compat.jit_options(jitted)["static_argnums"] == (1,)
    assert _compat.jit_options(_Jitted(jitted)) is None
    x = jnp.ones(2)
    compiled = jitted.lower(x, 2).compile()
    assert _compat.raw_execute(compiled, [x]) is not None
    assert _compat.raw_execute(object(), [x]) is None
    key = jax.random.key(0)  # only jaxlib knows the array inside a key
    compiled = jax.jit(jax.random.uniform).lower(key).compile()
    assert _compat.raw_execute(compiled, [key]) is not None
    (equation,) = jax.make_jaxpr(lambda x: x + 1)(x).eqns
    assert __file__ in [frame.file for frame in _compat.equation_frames(equation)]
    assert _compat.name_stack(object()) == ""
    assert _compat.equation_frames(object()) == []

    monkeypatch.setattr(_warm_call, "raw_execute", lambda *a: None)
    found = insight.breakdown(filter_jit(lambda x: x + 1), x, rounds=3)
    assert "jaxlib's own is not available" in "".join(found.notes)


def test_frames_of_a_profile_are_there():
    """The functions whose frames `profile` looks for exist in the installed versions.

    Without them a profile would say less than it could.
    """
    folders = [Path(eqx.__file__).parent, Path(jax.__file__).parent / "_src"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    for name, function in _profile_tree.CALL_FRAMES:
        sources = [file.read_text() for file in files if file.name == name]
        defined = re.compile(rf"^ *def {function}\(", re.MULTILINE)
        assert any(map(defined.search, sources)), f"no {function} in any {name}"


class _EqualByArray:
    __hash__ = None

    def __init__(self, array):
        self.array = array

    def __eq__(self, other):
        return bool((self.array == other.array).all())


@pytest.mark.parametrize("missing", ["jax._src.core:eval_trace", ""])
def test_comparing_statics_is_no_part_of_a_trace(missing, take_away):
    class Model(eqx.Module):
        x: jax.Array
        static: _EqualByArray = eqx.field(static=True)

    take_away(missing)
    _compat.top_level_trace.cache_clear()
    try:
        f, static = filter_jit(lambda m: m.x * 2), _EqualByArray(X)
        for _ in range(2):
            jaxpr = jax.make_jaxpr(lambda x: f(Model(x, static)))(X)
            assert [e.primitive.name for e in jaxpr.eqns] == ["jit"]
            assert f(Model(X, static)).tolist() == (2 * X).tolist()
    finally:
        _compat.top_level_trace.cache_clear()


@pytest.mark.parametrize("missing", ["jax._src.core:set_current_trace", ""])
def test_what_a_flatten_function_computes_is_no_part_of_a_trace(missing, take_away):
    class Sized:
        def __init__(self, x):
            self.x = x

    jax.tree_util.register_pytree_node(
        Sized, lambda s: ((s.x * 2,), int(jnp.sum(X * 0))), lambda _, xs: Sized(*xs)
    )
    take_away(missing)
    f = filter_jit(lambda s: s.x + 1)
    for _ in range(2):
        jaxpr = f.trace(Sized(X)).jaxpr
        assert [e.primitive.name for e in jaxpr.eqns] == ["add"]
        assert f(Sized(X)).tolist() == (2 * X + 1).tolist()
        f.clear_cache()


@pytest.mark.parametrize(
    ("missing", "known"),
    [
        ([], True),
        (["jax._src.core:trace_state_strong_ref"], True),
        (["jax._src.core:trace_state_strong_ref", "jax._src.core:trace_ctx"], False),
        (["jax._src.core:eval_trace"], False),
    ],
)
def test_where_the_current_trace_is(missing, known, take_away):
    for name in missing:
        take_away(name)
    place = _compat.top_level_trace.__wrapped__()
    assert (place is not None) == known
    if place is not None:
        owner, name, trace = place
        seen = [getattr(owner, name) is trace]
        jax.vmap(lambda x: seen.append(getattr(owner, name) is trace) or x)(X)
        jax.jit(lambda x: seen.append(getattr(owner, name) is trace) or x)(X)
        assert seen == [True, False, False]


def test_every_private_name_is_taken_away_above():
    """Each name that `_compat.py` resolves is listed in a test of this file."""
    source = Path(_compat.__file__).read_text()
    paths = set(re.findall(r"resolve\(\s*\"([^\"]+)\"", source))
    assert paths
    assert all(f'"{path}"' in Path(__file__).read_text() for path in paths)


def test_unknown_engine(monkeypatch):
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", "fast")
    monkeypatch.setattr(_engine, "_state", {})
    with pytest.raises(ValueError, match="'fast' is not an engine; expected one of"):
        filter_jit(lambda x: x)


def test_import_is_light():
    out = _python(
        "import sys, equinox; before = set(sys.modules); import eqx_fastjit\n"
        "new = {m.partition('.')[0] for m in set(sys.modules) - before}\n"
        "print(sorted(new))\n"
        "import jax; assert not jax._src.xla_bridge._backends"
    )
    assert out.stderr == ""
    assert out.stdout.strip() == "['eqx_fastjit']"


# --- install ---


def test_install_and_uninstall():
    theirs = eqx.filter_jit
    modules = [m for n, m in sys.modules.items() if n.startswith("equinox")]
    holders = [m for m in modules if vars(m).get("filter_jit") is theirs]
    assert len(holders) >= 2
    eqx_fastjit.install(asynchronous=True)
    eqx_fastjit.install(asynchronous=True)
    try:
        assert all(m.filter_jit is filter_jit for m in holders)
        assert isinstance(eqx.filter_jit(lambda x: x), eqx_fastjit.JitWrapped)
        library = types.ModuleType("library")
        exec("from equinox import filter_jit", vars(library))
        assert library.filter_jit is filter_jit
        with eqx_fastjit.installed(asynchronous=True):
            pass
        assert eqx.filter_jit is filter_jit
    finally:
        eqx_fastjit.uninstall()
    eqx_fastjit.uninstall()
    assert all(m.filter_jit is theirs for m in holders)
    with pytest.raises(KeyError), eqx_fastjit.installed(asynchronous=True):
        assert eqx.filter_jit is filter_jit
        raise KeyError
    assert eqx.filter_jit is theirs


# --- threads ---


def _in_threads(n, target):
    errors = []
    barrier = threading.Barrier(n)

    def run(i):
        try:
            barrier.wait()
            target(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_threads_first_call_the_same_function():
    traces = []

    @filter_jit
    def f(m, x, n):
        traces.append(n)
        return m(x), n

    m = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))

    def target(i):
        for _ in range(50):
            for n in (1, 2.0, True):
                out, got = f(m, jnp.ones(2), n)
                assert got is n
                assert out.shape == (2,)

    _in_threads(8, target)
    assert sorted(map(str, set(map(repr, traces)))) == ["1", "2.0", "True"]


def test_threads_meet_new_types_and_wrap():
    def target(i):
        for j in range(5):

            class M(eqx.Module):
                w: jax.Array
                n: int = eqx.field(static=True)

            class Opaque:
                pass

            opaque = Opaque()
            f = filter_jit(lambda m, o: (m.w * m.n, o))
            for _ in range(25):
                out, o = f(M(jnp.ones(2), j), opaque)
                assert out.tolist() == [j, j]
                assert o is opaque

    _in_threads(6, target)


def test_threads_get_their_own_errors():
    fs = [
        filter_jit(lambda x, i=i: eqx.error_if(x, x < 0, f"negative number {i}"))
        for i in range(6)
    ]

    def target(i):
        for _ in range(5):
            assert fs[i](jnp.array(1.0)) == 1
            with pytest.raises(eqx.EquinoxRuntimeError) as info:
                fs[i](jnp.array(-1.0))
            assert f"negative number {i}" in str(info.value)

    _in_threads(6, target)


def test_an_interrupted_trace_leaves_the_function_usable():
    interrupt = [True]

    @filter_jit
    def f(x):
        if interrupt[0]:
            raise KeyboardInterrupt("here")
        return x + 1

    with pytest.raises(KeyboardInterrupt, match="here"):
        f(jnp.ones(2))
    interrupt[0] = False
    for _ in range(3):
        assert f(jnp.ones(2)).tolist() == [2, 2]
