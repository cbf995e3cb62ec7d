"""Where `equinox.filter_jit` is wrong or surprising, and ours differs on purpose.

Each test asserts the behaviour of both, so that it fails if Equinox changes.
"""

import collections
import dataclasses
import time
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import eqx_fastjit
from eqx_fastjit import _blocking, _compat, _errors


class Counter:
    def __init__(self):
        self.n = 0

    def __call__(self, *_):
        self.n += 1


def _both(make, *steps):
    """Results of each step on what `make(filter_jit)` returns, for Equinox and for
    ours.
    """
    out = []
    for jit in (eqx.filter_jit, eqx_fastjit.filter_jit):
        f = make(jit)
        out.append([step(f) for step in steps])
    return out


def test_int_float_and_bool_are_told_apart():
    x = jnp.array([1, 2])
    theirs, ours = _both(
        lambda jit: jit(lambda x, n: (x.astype(type(n)), type(n))),
        lambda f: f(x, 1),
        lambda f: f(x, 1.0),
        lambda f: f(x, True),
    )
    assert [t for _, t in theirs] == [int, int, int]
    assert [t for _, t in ours] == [int, float, bool]
    assert [a.dtype for a, _ in ours] == [jnp.int32, jnp.float32, jnp.bool_]


@pytest.mark.parametrize("wrap", [tuple, list, lambda x: {"k": x[0]}])
def test_told_apart_inside_containers_and_fields(wrap):
    class M(eqx.Module):
        s: object = eqx.field(static=True)

    @dataclasses.dataclass(frozen=True)
    class Config:
        a: object

    def kind(s):
        return jnp.zeros(()), str(jax.tree_util.tree_leaves(s))

    ours = eqx_fastjit.filter_jit(lambda m: kind(m.s))
    for value in (1, 1.0, True, 1, 0.0, -0.0):
        assert ours(M(wrap([value])))[1] == kind(wrap([value]))[1]
    leaf = eqx_fastjit.filter_jit(lambda c: (jnp.zeros(()), c))
    for value in (1, 1.0, True, 0.0, -0.0):
        assert repr(leaf(Config(value))[1]) == repr(Config(value))


def test_signed_zeros_and_nan():
    x = jnp.array(1.0)
    count = Counter()

    def make(jit):
        return jit(lambda x, n: (count(), jnp.copysign(x, n))[1])

    theirs, ours = _both(make, lambda f: f(x, 0.0), lambda f: f(x, -0.0))
    assert [float(y) for y in theirs] == [1.0, 1.0]
    assert [float(y) for y in ours] == [1.0, -1.0]

    class Mine(float):
        pass

    g = eqx_fastjit.filter_jit(lambda x, n: (x, n))
    for value in (Mine(0.0), Mine(-0.0), 0.0, -0.0, np.float64(1)):
        for _ in range(3):
            out = g(x, value)[1]
            assert str(out) == str(value)
    assert type(g(x, Mine(-0.0))[1]) is Mine

    nan = float("nan")
    for value in (nan, Mine(nan), complex(nan, 0), complex(0.0, -0.0)):
        f = make(eqx_fastjit.filter_jit)
        f = eqx_fastjit.filter_jit(lambda x, n: (count(), x)[1])
        count.n = 0
        for _ in range(5):
            f(x, value)
        assert count.n == 1


def test_omitted_default_and_same_value_share_a_trace():
    x = jnp.ones(2)
    count = Counter()

    def make(jit):
        count.n = 0

        @jit
        def f(x, n=2, opts=(1, "a"), *, k=None):
            count()
            return x * n

        return f

    for jit, expected in ((eqx.filter_jit, 6), (eqx_fastjit.filter_jit, 1)):
        f = make(jit)
        f(x)
        f(x, 2)
        f(x, n=2)
        f(x, 2, (1, "a"))
        f(x, k=None)
        f(x, 2, (1, "a"), k=None)
        f(opts=(1, "a"), x=x)
        assert count.n == expected


def test_dictionary_keys_are_told_apart():
    f = eqx_fastjit.filter_jit(lambda d: (jnp.zeros(()), [type(k) for k in d]))
    x = jnp.ones(1)
    for _ in range(3):
        for key in (1, 1.0, True, "1"):
            assert f({key: x})[1] == [type(key)]


def test_compiled_call_checks_statics():
    x = jnp.arange(3)
    theirs = eqx.filter_jit(lambda x, n: x * n).lower(x, 2).compile()
    # computes with the wrong number, without an error
    assert theirs(x, 5).tolist() == [0, 2, 4]
    ours = eqx_fastjit.filter_jit(lambda x, n: x * n).lower(x, 2).compile()
    assert ours(x, 2).tolist() == [0, 2, 4]
    with pytest.raises(TypeError, match=r"static `n` was 2 and is now 5"):
        ours(x, 5)


def test_calls_return_before_the_device_is_done():
    def chain(x):
        for _ in range(60):
            x = jnp.tanh(x @ x)
        return x

    x = jnp.ones((600, 600)) / 600

    def returns_early(f):
        f(x).block_until_ready()
        # This is not a speed test: the durations differ by a factor of hundreds, or not
        # at all. It tries several times, since XLA may run a call inline on a busy
        # machine.
        for _ in range(5):
            start = time.perf_counter()
            out = f(x)
            dispatched = time.perf_counter() - start
            out.block_until_ready()
            if dispatched < (time.perf_counter() - start) / 3:
                return True
        return False

    if not returns_early(jax.jit(chain)):
        pytest.skip("jax.jit itself waits here, as older versions do on the CPU")
    assert returns_early(eqx_fastjit.filter_jit(chain))
    assert not returns_early(eqx.filter_jit(chain))


def _long_chain(x):
    return jax.lax.fori_loop(0, 60, lambda _, x: jnp.tanh(x @ x), x)


@pytest.mark.parametrize("compiled", [False, True])
def test_numpy_arrays_may_be_written_to_after_a_call(compiled):
    """JAX may read them until the computation is done, so such calls block."""
    f = eqx_fastjit.filter_jit(lambda x, n: (_long_chain(x / 600).sum() * 0 + x[0], n))
    x = np.ones((600, 600), np.float32)
    out = [f(x, 1)]
    call = f.lower(x, 1).compile() if compiled else f
    for i in range(2, 6):  # the first call, the second, and warm calls
        x[:] = i
        out.append(call(x, 1))
        assert out[-1][0].is_ready()
    x[:] = 0
    assert [float(y[0][0]) for y in out] == [1, 2, 3, 4, 5]
    # JAX arrays are immutable, so the call with one returns early.
    y = jnp.asarray(np.ones((600, 600), np.float32))
    early = [not f(y, 1)[0].is_ready() for _ in range(5)]
    assert any(early) or not any(
        not jax.jit(_long_chain)(y).is_ready() for _ in range(5)
    )


@pytest.mark.parametrize("compiled", [False, True])
def test_small_numpy_arrays_are_copied_so_calls_do_not_block(compiled):
    f = eqx_fastjit.filter_jit(lambda x, n: (_long_chain(x / 400).sum() * 0 + x[0], n))
    x = np.ones((400, 400), np.float32)
    call = f.lower(x, 1).compile() if compiled else f
    out, early = [], []
    for i in range(1, 9):
        x[:] = i
        out.append(call(x, 1))
        early.append(not out[-1][0].is_ready())
        x[:] = 0
    assert [float(y[0][0]) for y in out] == list(range(1, 9))
    y = jnp.ones((400, 400))
    assert any(early) or not any(
        not jax.jit(_long_chain)(y).is_ready() for _ in range(5)
    )


@pytest.mark.parametrize("late", ["call", "argument"])
def test_numpy_arrays_may_be_written_to_after_calls_that_were_quick(late):
    """The native engine no longer copies such arrays: a slow call then blocks once."""
    small, large = jnp.ones((3, 3)), jnp.ones((2000, 2000))
    slow = jax.jit(lambda x: _long_chain(x / 600)[:3, :3] * 0 + 1)
    f = eqx_fastjit.filter_jit(lambda y, x: (y @ y).sum() * 0 + x[0])
    memory, out = np.zeros(128, np.uint8), []
    start = -memory.ctypes.data % 64  # JAX copies what is not aligned
    x = memory[start : start + 12].view(np.float32)

    def call(y):
        x[:] = len(out)
        out.append(f(y, x))
        x[:] = -1
        return out[-1]

    def late_calls(n):
        for _ in range(n):
            call(large if late == "call" else slow(jnp.ones((600, 600))))

    call(large).block_until_ready()
    for n in (40, 1100):  # and what was slow may be quick again
        for _ in range(n):
            call(small).block_until_ready()
        late_calls(3)
    assert [float(y) for y in out] == list(range(len(out)))


class _Subclass(np.ndarray):
    pass


@pytest.mark.parametrize(
    ("arrays", "blocks"),
    [
        ([np.ones(1 << 18, np.float32)], False),
        ([np.ones(1 << 18, np.float32), np.ones(1, np.int8)], True),
        ([np.ones(2).view(_Subclass), np.ones(2)], True),
        ([np.float32(1), jnp.ones(1 << 20), 1], False),
    ],
)
def test_what_is_copied(arrays, blocks):
    copied = _blocking.copied(arrays)
    assert _blocking.reads_numpy(copied) == _blocking.reads_numpy(arrays) == blocks
    for before, after in zip(arrays, copied, strict=True):
        same = blocks or type(before) is not np.ndarray
        assert (after is before) == same


@pytest.mark.parametrize(
    "transform",
    [
        lambda g, x: jax.value_and_grad(g)(x),
        lambda g, x: jax.jvp(g, (x,), (np.ones_like(x),)),
        lambda g, x: jax.linearize(g, x),
        lambda g, x: jax.vjp(g, x),
        lambda g, x: jax.vmap(g)(x[None]),
    ],
    ids=["value_and_grad", "jvp", "linearize", "vjp", "vmap"],
)
def test_numpy_arrays_inside_of_tracers_may_be_written_to(transform):
    """Eager transformations wrap the NumPy array itself, which JAX may not copy."""
    f = eqx_fastjit.filter_jit(lambda x: _long_chain(x / 600).sum())
    ready = []

    def g(x):
        y = f(x)
        ready.append(_compat.concrete(y).is_ready())
        return y

    for _ in range(4):
        transform(g, np.ones((600, 600), np.float32))
    assert all(ready)


def test_static_factories_of_dictionaries_are_told_apart():
    class M(eqx.Module):
        w: jax.Array
        s: object = eqx.field(static=True)

    def at_missing(m):
        return m.w * m.s["missing"]

    w = jnp.ones(())
    factories = (int, lambda: 7)
    f = eqx_fastjit.filter_jit(at_missing)
    got = [f(M(w, collections.defaultdict(factory))) for factory in factories]
    assert got == [0, 7]


@pytest.mark.parametrize(
    "make",
    [
        lambda x: types.SimpleNamespace(a=x),
        lambda x: types.MappingProxyType({"a": x}),
        lambda x: collections.deque([x], 3),
        lambda x: collections.Counter({"a": x}),
    ],
)
def test_told_apart_in_containers_of_the_standard_library(make):
    class M(eqx.Module):
        w: jax.Array
        s: object = eqx.field(static=True)

    traces = Counter()
    f = eqx_fastjit.filter_jit(lambda m: (traces(), m.w)[1])
    for x in (1, 1.0, 1, True, 1.0):
        f(M(jnp.ones(()), make(x)))
    assert traces.n == 3


def test_static_view_of_a_dictionary_that_changes():
    class M(eqx.Module):
        w: jax.Array
        s: object = eqx.field(static=True)

    d = {"a": 1}
    m = M(jnp.ones(()), types.MappingProxyType(d))
    f = eqx_fastjit.filter_jit(lambda m: m.w * m.s["a"])
    assert f(m) == 1
    d["a"] = 2
    assert f(m) == 2


def test_names_of_a_static_structured_dtype_that_change():
    class M(eqx.Module):
        w: jax.Array
        s: object = eqx.field(static=True)

    dtype = np.dtype([("a", "i4"), ("b", "f4")])
    m = M(jnp.ones(()), dtype)
    f = eqx_fastjit.filter_jit(lambda m: (m.w, m.s.names))
    for _ in range(40):
        assert f(m)[1] == ("a", "b")
    dtype.names = ("c", "d")
    assert f(m)[1] == ("c", "d")


def test_static_list_changed_in_place():
    class M(eqx.Module):
        w: jax.Array
        s: list = eqx.field(static=True)

    m = M(jnp.ones(()), [1])

    theirs, ours = _both(
        lambda jit: jit(lambda m: m.w * m.s[0]),
        lambda f: (f(m), m.s.__setitem__(0, 5), f(m), m.s.__setitem__(0, 1)),
    )
    assert theirs[0][2] == 1  # a stale trace
    assert ours[0][2] == 5


def test_static_object_changed_in_place():
    class Config:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __hash__(self):
            return hash(self.n)

    class M(eqx.Module):
        w: jax.Array
        s: object = eqx.field(static=True)

    f = eqx_fastjit.filter_jit(lambda c, x: x * c.n)
    g = eqx_fastjit.filter_jit(lambda m: m.w * m.s.n)
    c = Config(2)
    m = M(jnp.ones(()), c)
    for _ in range(40):  # more than enough calls to be warm
        assert f(c, jnp.ones(())) == 2
        assert g(m) == 2
    c.n = 3
    assert f(c, jnp.ones(())) == 3
    assert g(m) == 3


def test_static_numpy_array_changed_in_place():
    with pytest.warns(UserWarning, match="being set as static"):

        class M(eqx.Module):
            w: jax.Array
            s: object = eqx.field(static=True)

        m = M(jnp.ones(()), np.array([2.0, 3.0]))
    f = eqx_fastjit.filter_jit(lambda m: m.w * m.s.sum())
    for _ in range(40):
        assert f(m) == 5
    m.s[0] = 7.0
    assert f(m) == 10


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("xp", [np, jnp])
def test_static_arrays(xp):
    class M(eqx.Module):
        w: jax.Array
        table: object = eqx.field(static=True)

    a, b = xp.arange(3), xp.arange(3)
    for jit in (eqx.filter_jit, eqx_fastjit.filter_jit):
        count = Counter()
        f = jit(lambda m: (count(), m.w)[1])  # noqa: B023
        for _ in range(40):
            f(M(jnp.ones(2), a))
        assert count.n == 1
        with pytest.raises(ValueError) as info:
            f(M(jnp.ones(2), b))
        if jit is eqx_fastjit.filter_jit:
            assert "static field `m.table`" in str(info.value)
        if jit is eqx.filter_jit:
            continue  # Equinox also raises for arrays of other shapes
        f(M(jnp.ones(2), xp.arange(4)))
        f(M(jnp.ones(2), xp.zeros(1)))
        f(M(jnp.ones(2), xp.zeros(1)))


def test_module_changed_by_force():
    f = eqx_fastjit.filter_jit(lambda m, x: m(x))
    m = eqx.nn.Linear(2, 2, key=jax.random.key(0))
    for _ in range(40):
        before = f(m, jnp.ones(2))
    object.__setattr__(m, "weight", m.weight + 1)
    object.__setattr__(m, "use_bias", False)
    object.__setattr__(m, "bias", None)
    np.testing.assert_allclose(f(m, jnp.ones(2)), m.weight.sum(1), rtol=1e-6)
    assert not np.allclose(before, f(m, jnp.ones(2)))


def test_cache_miss_explanation_names_the_users_function(caplog):
    def my_very_own_function(x, secret):
        return x

    f = eqx_fastjit.filter_jit(my_very_own_function)
    with jax.explain_cache_misses(True), caplog.at_level("WARNING"):
        for secret in ("static-value", "static-value too"):
            f(jnp.ones(2), secret)
    assert "my_very_own_function" in caplog.text
    assert "re-defined repeatedly" not in caplog.text
    assert f"at {__file__}" in caplog.text
    assert __file__ in caplog.text
    assert "static-value" not in caplog.text


def test_stack_of_a_runtime_error_is_cut_on_later_calls():
    @eqx_fastjit.filter_jit
    def f(x):
        return eqx.error_if(x, x < 0, "a text of this test alone")

    f(jnp.array(1.0))
    for _ in range(3):
        with pytest.raises(eqx.EquinoxRuntimeError, match="this test alone") as info:
            f(jnp.array(-1.0))
        inside = str(info.value).partition("Below is the stack inside of JIT")[2]
        assert "eqx.error_if(x, x < 0" in inside
        assert "pytest" not in inside


@pytest.mark.parametrize("message", ["", "an earlier message", "~ a later message"])
def test_a_runtime_error_of_another_thread_is_not_shown(message, monkeypatch):
    """Equinox keeps the last one in a global."""
    f = eqx_fastjit.filter_jit(lambda x: eqx.error_if(x, x < 0, "the message here"))
    f(jnp.array(1.0))
    other = (message, ["a frame of another thread"])
    monkeypatch.setattr(_errors, "last_error_info", lambda: other)
    with pytest.raises(eqx.EquinoxRuntimeError, match="the message here") as info:
        f(jnp.array(-1.0))
    assert "another thread" not in str(info.value)
    assert not message or message not in str(info.value)


def test_no_result_of_its_own_takes_a_donated_scalar():
    """Equinox returns an extra scalar, whose buffer may be that of a donated scalar.

    The caller then loses an array although no result reuses its buffer, and without a
    warning. `jax.jit` warns, and does not delete the array.
    """

    def f(x):
        return x + jnp.ones(3, jnp.int32)

    x, y, z = (jnp.array(n) for n in (1, 2, 3))
    eqx.filter_jit(f, donate="warn")(x)
    assert x.is_deleted()
    with pytest.warns(UserWarning, match="donated buffers were not usable: .*int32"):
        jax.jit(f, donate_argnums=0)(y)
    with pytest.warns(UserWarning, match="donated buffers were not usable: .*int32"):
        eqx_fastjit.filter_jit(f, donate="warn")(z)
    assert not y.is_deleted()
    assert not z.is_deleted()
