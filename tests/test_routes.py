"""The two routes, private names that go missing, and `install()`."""

import collections
import contextlib
import os
import re
import subprocess
import sys
import threading
import types
import weakref
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _compat, _dispatch, _generate, _jit, _nodes, filter_jit, insight


def _python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def test_route_is_what_was_asked_for(route):
    assert eqx_fastjit.engine() == route


def test_the_fast_path_is_taken(native_only, monkeypatch):
    """Once warm, no Python of ours runs but the front."""
    f = filter_jit(lambda m, x, n, *, key: (m, m(x) * n, key))
    m = eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))
    k = jax.random.key(0)
    calls = [
        lambda: f(m, jnp.ones(2), 2, key=k),
        lambda: f(m, jnp.ones(2), 2.5, key=(k, "s", None)),
        lambda: f(eqx.nn.Identity(), jnp.ones(2), 2, key={"a": jnp.sin}),
        lambda: filter_jit(m)(jnp.ones(2)),
    ]
    for _ in range(40):  # until code has been generated, which costs one more miss
        for call in calls:
            call()
    misses = []
    original = _dispatch.JittedFunction.miss
    monkeypatch.setattr(
        _dispatch.JittedFunction,
        "miss",
        lambda self, values: (misses.append(values), original(self, values))[1],
    )
    for call in calls:
        call()
    assert not misses
    f(m, jnp.ones(2), 3, key=k)
    assert len(misses) == 1


@pytest.fixture
def fresh(monkeypatch):
    """Nothing has been wrapped yet, and no route is asked for."""
    monkeypatch.setattr(_dispatch, "_state", {})
    monkeypatch.setattr(_jit, "_functions", weakref.WeakKeyDictionary())
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", "auto")


def _take_away(monkeypatch, name):
    resolve = _compat.resolve

    def without(path):
        if path == name:
            raise _compat.MissingPrivateName(path)
        return resolve(path)

    monkeypatch.setattr(_compat, "resolve", without)


def _check_portable():
    with pytest.warns(RuntimeWarning, match="takes the portable route") as record:
        f = filter_jit(lambda m, x: m(x))
        g = filter_jit(lambda x: x)
    assert len(record) == 1
    assert eqx_fastjit.engine() == "portable"
    m = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    assert eqx.tree_equal(f(m, jnp.ones(2)), eqx.filter_jit(m)(jnp.ones(2)))
    assert g(1) == 1


_NAMES = [*_compat.CPP_NAMES.values(), *_compat.CPP_METHODS]


@pytest.mark.parametrize("name", _NAMES)
def test_a_missing_private_name(name, native_only, monkeypatch, fresh):
    """One warning, the portable route, right results."""
    _take_away(monkeypatch, name)
    _check_portable()
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", "cpp")
    monkeypatch.setattr(_dispatch, "_state", {})
    with pytest.raises(RuntimeError, match="EQX_FASTJIT_ENGINE=cpp"):
        filter_jit(lambda x: x)


@pytest.mark.parametrize("method", _compat.DISPATCHER_METHODS)
def test_a_missing_method_of_the_dispatcher(method, native_only, monkeypatch, fresh):
    class Jitted:
        """What `jax.jit` gives, less one method."""

        def __init__(self, *args, **kwargs):
            self.jitted = jit(*args, **kwargs)

        def __call__(self, *args):
            return self.jitted(*args)

        def __getattr__(self, name):
            if name == method:
                raise AttributeError(name)
            return getattr(self.jitted, name)

    jit = jax.jit
    monkeypatch.setattr(jax, "jit", Jitted)
    _check_portable()


def _use_everything():
    """Results of all kinds, often enough for code to be generated."""
    f = filter_jit(lambda m, x, n: (m(x) * n, m, {"n": n}))
    m = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
    for n in (2, 3):
        for _ in range(40):
            out, same, static = f(m, jnp.ones(2), n)
        assert eqx.tree_equal((out, same), (eqx.filter_jit(m)(jnp.ones(2)) * n, m))
        assert static == {"n": n}


class _Record:
    """A fast-path record or a registry entry of another JAX, without our field."""


def test_a_fast_path_record_of_another_kind(native_only, monkeypatch, fresh):
    call_with_fastpath = _compat.call_with_fastpath
    monkeypatch.setattr(
        _compat, "call_with_fastpath", lambda *a: (call_with_fastpath(*a)[0], _Record())
    )
    # One that is known, which nothing is asked of beforehand.
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    _use_everything()
    # A JAX that we do not know, and where no call is ever quick, is left alone.
    monkeypatch.setattr(jax, "__version_info__", (0, 99, 0))
    monkeypatch.setattr(_dispatch, "_state", {})
    with pytest.warns(RuntimeWarning, match="a self-check never took the fast path"):
        filter_jit(lambda x: x)
    assert eqx_fastjit.engine() == "portable"


def test_registry_entries_of_another_kind(native_only, monkeypatch, fresh):
    _use_everything()
    entries = dict.fromkeys(_dispatch.nodes().cpp.node_entries, _Record())
    monkeypatch.setitem(_dispatch._state, "nodes", None)
    assert _compat.unflatten_function(entries, eqx.nn.MLP) is None
    monkeypatch.setattr(_dispatch, "_state", {})
    monkeypatch.setattr(_generate, "unflatten_function", lambda entries, cls: None)
    _use_everything()
    f = filter_jit(lambda x: collections.OrderedDict(a=x, b=1))
    for _ in range(40):
        assert f(jnp.ones(2))["a"].shape == (2,)


def test_a_dispatcher_without_a_function_to_run_again(native_only):
    class Dispatcher:
        __slots__ = ()

    _compat.set_python_function(Dispatcher(), len)


@pytest.mark.parametrize(
    "name",
    [
        "equinox._jit:last_error_info",
        "equinox._jit:_on_error_msg",
        "equinox._caches:cache_clears",
        "jax._src.traceback_util:register_exclusion",
    ],
)
def test_a_missing_name_that_only_helps(name, monkeypatch):
    _take_away(monkeypatch, name)
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
def test_a_missing_name_that_only_insight_uses(name, monkeypatch):
    _take_away(monkeypatch, name)
    theirs = eqx.filter_jit(lambda x: x * 2)
    missing = "_JitWrapper" in name
    assert (_compat.filter_jit_options(theirs) is None) == missing
    assert (_compat.equinox_partition() is None) == (not missing)
    x = jnp.ones(2)
    (leaf,) = insight.compare_eager(theirs, x).leaves
    assert leaf.absolute == 0
    assert insight.breakdown(theirs, x, rounds=3).steady


class _Jitted:
    """What `jax.jit` gives, less what it knows of its options."""

    def __init__(self, jitted):
        self.jitted = jitted

    def __getattr__(self, name):
        if name == "_jit_info":
            raise AttributeError(name)
        return getattr(self.jitted, name)


def test_attributes_that_only_insight_uses(monkeypatch):
    """Without them: no options, no frames, no names, JAX's own call of a program."""
    jitted = jax.jit(lambda x, n: x * n, static_argnums=1)
    assert _compat.jit_options(jitted)["static_argnums"] == (1,)
    assert _compat.jit_options(_Jitted(jitted)) is None
    x = jnp.ones(2)
    compiled = jitted.lower(x, 2).compile()
    assert _compat.raw_execute(compiled, [x]) is not None
    assert _compat.raw_execute(object(), [x]) is None
    (equation,) = jax.make_jaxpr(lambda x: x + 1)(x).eqns
    assert __file__ in [frame.file for frame in _compat.equation_frames(equation)]
    assert _compat.name_stack(object()) == ""
    assert _compat.equation_frames(object()) == []

    module = sys.modules[insight.breakdown.__module__]
    monkeypatch.setattr(module, "raw_execute", lambda *a: None)
    found = insight.breakdown(filter_jit(lambda x: x + 1), x, rounds=3)
    assert "jaxlib's own call is not reachable" in "".join(found.notes)


def test_frames_of_a_profile_are_there():
    """In the versions that are installed: else a profile knows less than it could."""
    folders = [Path(eqx.__file__).parent, Path(jax.__file__).parent / "_src"]
    files = [file for folder in folders for file in folder.rglob("*.py")]
    for name, function, _ in _compat.CALL_FRAMES:
        sources = [file.read_text() for file in files if file.name == name]
        defined = re.compile(rf"^ *def {function}\(", re.MULTILINE)
        assert any(map(defined.search, sources)), f"no {function} in any {name}"


def test_every_private_name_is_taken_away_above():
    """Whatever is resolved anywhere in `_compat.py` stands in a test of this file."""
    source = Path(_compat.__file__).read_text()
    paths = set(re.findall(r"resolve\(\s*\"([^\"]+)\"", source))
    assert paths
    assert all(f'"{path}"' in Path(__file__).read_text() for path in paths)


@pytest.mark.parametrize("inside_trace", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_a_jax_that_is_not_known(broken, inside_trace, native_only, monkeypatch, fresh):
    monkeypatch.setattr(jax, "__version_info__", (0, 99, 0))
    if broken:
        # A dispatcher that forgets to look at the statics.
        monkeypatch.setattr(_nodes._Interned, "__missing__", lambda self, x: ((), None))
        expected = pytest.warns(RuntimeWarning, match="self-check gave a wrong result")
    else:
        expected = contextlib.nullcontext()

    def wrap(x):
        return filter_jit(lambda x, n: x * n)(x, 3)

    with expected:
        out = (jax.jit(wrap) if inside_trace else wrap)(jnp.ones(2))
    assert out.tolist() == [3, 3]
    assert eqx_fastjit.engine() == ("portable" if broken else "cpp")


def test_unknown_route(monkeypatch):
    monkeypatch.setenv("EQX_FASTJIT_ENGINE", "fast")
    monkeypatch.setattr(_dispatch, "_state", {})
    with pytest.raises(ValueError, match="'fast' is not a route; expected one of"):
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
    eqx_fastjit.install()
    eqx_fastjit.install()
    try:
        assert all(m.filter_jit is filter_jit for m in holders)
        assert isinstance(eqx.filter_jit(lambda x: x), eqx_fastjit.JitWrapped)
        library = types.ModuleType("library")
        exec("from equinox import filter_jit", vars(library))
        assert library.filter_jit is filter_jit
        with eqx_fastjit.installed():
            pass
        assert eqx.filter_jit is filter_jit
    finally:
        eqx_fastjit.uninstall()
    eqx_fastjit.uninstall()
    assert all(m.filter_jit is theirs for m in holders)
    with pytest.raises(KeyError), eqx_fastjit.installed():
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


def test_an_interrupted_trace_leaves_the_function_usable(monkeypatch):
    interrupt = [True]

    @filter_jit
    def f(x):
        if interrupt[0]:
            raise KeyboardInterrupt
        return x + 1

    with pytest.raises(KeyboardInterrupt):
        f(jnp.ones(2))
    interrupt[0] = False
    for _ in range(3):
        assert f(jnp.ones(2)).tolist() == [2, 2]
    if f._function.dispatcher is not None:
        # And quick again: the dispatcher does not ask any more.
        monkeypatch.setattr(_dispatch.JittedFunction, "miss", None)
        assert f(jnp.ones(2)).tolist() == [2, 2]
