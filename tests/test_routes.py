"""The two routes, private names that go missing, and `install()`."""

import os
import subprocess
import sys
import threading
import types
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _compat, _dispatch, _jit, _nodes, filter_jit


def _python(code, **env):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def test_route_is_what_was_asked_for(route):
    assert eqx_fastjit.route() == route


def test_the_fast_path_is_taken(cpp_only, monkeypatch):
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


@pytest.mark.parametrize("name", [*_compat.CPP_NAMES.values(), "methods"])
def test_a_missing_private_name(name, monkeypatch):
    """One warning, the portable route, right results."""
    resolve = _compat.resolve

    def without(path):
        if path == name or (name == "methods" and path.endswith("register_node")):
            raise _compat.MissingPrivateName(path)
        return resolve(path)

    monkeypatch.setattr(_compat, "resolve", without)
    monkeypatch.setattr(_dispatch, "_state", {})
    monkeypatch.setattr(_jit, "_functions", weakref.WeakKeyDictionary())
    monkeypatch.setenv("EQX_FASTJIT_ROUTE", "auto")
    with pytest.warns(RuntimeWarning, match="takes the portable route") as record:
        f = filter_jit(lambda m, x: m(x))
        g = filter_jit(lambda x: x)
    assert len(record) == 1
    assert eqx_fastjit.route() == "portable"
    m = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    assert eqx.tree_equal(f(m, jnp.ones(2)), eqx.filter_jit(m)(jnp.ones(2)))
    assert g(1) == 1
    monkeypatch.setenv("EQX_FASTJIT_ROUTE", "cpp")
    monkeypatch.setattr(_dispatch, "_state", {})
    with pytest.raises(RuntimeError, match="EQX_FASTJIT_ROUTE=cpp"):
        filter_jit(lambda x: x)


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
    resolve = _compat.resolve

    def without(path):
        if path == name:
            raise _compat.MissingPrivateName(path)
        return resolve(path)

    monkeypatch.setattr(_compat, "resolve", without)
    _compat.hide_from_tracebacks("nowhere")
    _compat.on_clear_caches(lambda: None)
    f = filter_jit(lambda x: eqx.error_if(x, x < 0, f"negative {name}"))
    f(jnp.array(1.0))
    with pytest.raises(eqx.EquinoxRuntimeError, match=f"negative {name}"):
        f(jnp.array(-1.0))


@pytest.mark.parametrize("broken", [False, True])
def test_a_jax_that_is_not_known(broken, cpp_only, monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 99))
    monkeypatch.setattr(_dispatch, "_state", {})
    monkeypatch.setattr(_jit, "_functions", weakref.WeakKeyDictionary())
    monkeypatch.setenv("EQX_FASTJIT_ROUTE", "auto")
    if not broken:
        filter_jit(lambda x: x)
        assert eqx_fastjit.route() == "cpp"
        return

    # A dispatcher that forgets to look at the statics.
    monkeypatch.setattr(_nodes._Interned, "__missing__", lambda self, x: ((), None))
    with pytest.warns(RuntimeWarning, match="self-check gave a wrong result"):
        filter_jit(lambda x: x)
    assert eqx_fastjit.route() == "portable"


def test_unknown_route(monkeypatch):
    monkeypatch.setenv("EQX_FASTJIT_ROUTE", "fast")
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
