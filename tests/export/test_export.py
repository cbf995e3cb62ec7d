"""An exported function computes what the function computes, in any process."""

import copy
import inspect
import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct

from eqx_fastjit import filter_jit, load
from tests.export import functions
from tests.support.programs import run_program


pytest.importorskip("flatbuffers", reason="`save` needs it")
FORMS = {"portable": False, "compiled": True}
in_both_forms = pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
_X = ShapeDtypeStruct((2, 3), jnp.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.fastjit"


def save_all(tests, folder):
    for name, test in tests.items():
        exported = functions.filter_jit(test).export(*test.arguments())
        exported.save(folder / f"{name}.fastjit", compiled=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with each function in a file that has both forms."""
    return save_all(functions.FUNCTIONS, tmp_path_factory.mktemp("files"))


# --- results --------------------------------------------------------------------------


def test_a_fresh_process_computes_the_same(folder):
    """Modules, statics, keys, states, weak types, donation, LAPACK."""
    out = run_program("load_exported.py", folder, "single")
    assert out.stdout.count("same") == len(functions.FUNCTIONS) * len(FORMS)


def test_shardings_over_eight_devices_are_kept(tmp_path):
    tests = functions.sharded_functions()
    save_all(tests, tmp_path)
    out = run_program("load_exported.py", tmp_path, "sharded")
    assert out.stdout.count("same") == len(tests) * len(FORMS)


@pytest.mark.parametrize("name", ["constrained", "mapped"])
def test_a_mesh_in_the_body_alone_is_kept_without_a_compiled_form(path, name):
    """But for the names of its axes: only the compiler finds the mesh itself."""
    test = functions.sharded_functions()[name]
    f = functions.filter_jit(test)
    f.export(*test.arguments()).save(path)
    got, want = load(path)(*test.arguments()), f(*test.arguments())
    np.testing.assert_array_equal(got, want)
    assert got.sharding.is_equivalent_to(want.sharding, got.ndim)


def test_the_compiled_form_is_whole_under_a_persistent_cache(path, tmp_path):
    """What XLA has loaded from a cache, it does not save as a whole. Others use it."""
    run_program(
        "export_under_cache.py",
        path,
        JAX_COMPILATION_CACHE_DIR=str(tmp_path / "cache"),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0",
        JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES="-1",
    )
    assert list(tmp_path.glob("cache/*later*"))


@in_both_forms
def test_calls_block_only_over_several_devices_of_a_cpu(
    folder, tmp_path, waited, trusted
):
    """Two runs at once may starve each other there."""
    tests = {"committed": functions.sharded_functions()["committed"]}
    save_all(tests, tmp_path)

    f = load(folder / "mlp.fastjit", trusted=trusted)
    arguments = functions.FUNCTIONS["mlp"].arguments()
    for _ in range(3):
        f(*arguments)
        assert not waited

    f = load(tmp_path / "committed.fastjit", trusted=trusted)
    arguments = tests["committed"].arguments()
    waited.clear()
    for n in (1, 2, 3):
        f(*arguments)
        assert len(waited) >= n


def test_modules_and_methods_keep_their_arrays(tmp_path):
    """The process that loads them has no such class."""
    saved = run_program("export_vanishing.py", tmp_path).stdout.splitlines()
    loaded = run_program("load_vanishing.py", tmp_path).stdout.splitlines()
    assert loaded == [line for line in saved for _ in FORMS]


@in_both_forms
def test_gradients_of_the_order_that_was_saved(path, trusted):
    f = filter_jit(functions.mlp)
    arguments = functions.FUNCTIONS["mlp"].arguments()

    def gradient(f):
        return eqx.filter_grad(lambda args: jnp.sum(f(*args)))(arguments)

    f.export(*arguments).save(path, compiled=True, vjp_order=1)
    loaded = load(path, trusted=trusted)
    assert eqx.tree_equal(gradient(loaded), gradient(f), rtol=1e-5, atol=1e-6)

    f.export(*arguments).save(path, compiled=True)
    with pytest.raises(ValueError, match="VJP"):
        gradient(load(path, trusted=trusted))


@in_both_forms
def test_it_can_be_part_of_other_functions(folder, trusted):
    f = load(folder / "mlp.fastjit", trusted=trusted)
    arguments = functions.FUNCTIONS["mlp"].arguments()
    want = f(*arguments)

    np.testing.assert_allclose(filter_jit(f)(*arguments), want, rtol=1e-6)
    with jax.disable_jit():
        np.testing.assert_allclose(f(*arguments), want, rtol=1e-5)

    eqx.clear_caches()
    jax.clear_caches()
    np.testing.assert_allclose(f(*arguments), want, rtol=1e-6)


def test_symbolic_sizes(path):
    (b,) = jax.export.symbolic_shape("b")
    f = filter_jit(lambda model, x: jax.vmap(model)(x))
    model = eqx.nn.Linear(4, 2, key=jax.random.key(0))
    exported = f.export(model, ShapeDtypeStruct((b, 4), jnp.float32))
    exported.save(path)
    loaded = load(path)
    for n in (1, 3, 8):
        x = jnp.ones((n, 4))
        np.testing.assert_allclose(loaded(model, x), f(model, x), rtol=1e-6)

    with pytest.raises(TypeError, match="`x`"):
        loaded(model, jnp.ones((3, 5)))
    with pytest.raises(ValueError, match="symbolic"):
        exported.save(path, compiled=True)


def test_symbolic_sizes_of_several_arguments_agree(path):
    struct = ShapeDtypeStruct(jax.export.symbolic_shape("b, c"), jnp.float32)
    filter_jit(lambda x, y: x + y).export(struct, struct).save(path)
    load(path)(jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(TypeError, match="`y`"):
        load(path)(jnp.ones((2, 3)), jnp.ones((4, 3)))


def test_several_platforms(path):
    f = filter_jit(lambda x: x + 1)
    f.export(_X).save(path, platforms=("cpu", "cuda"))
    assert float(load(path)(functions.x())[0, 0]) == 1

    f.export(_X).save(path, platforms=("cuda",))
    with pytest.raises((ValueError, TypeError), match="cuda"):
        load(path)(functions.x())

    for wrong in ("cpu", ("cpux",)):
        with pytest.raises(ValueError, match="'cpu', 'cuda'"):
            f.export(_X).save(path, platforms=wrong)
    with pytest.raises(ValueError, match="vjp_order=-1"):
        f.export(_X).save(path, vjp_order=-1)


def test_checks_give_nan_and_a_neural_ode_loads(tmp_path):
    out = run_program("export_checked.py", tmp_path, EQX_ON_ERROR="nan")
    assert out.stdout.split() == ["True", "False"]


# --- the signature --------------------------------------------------------------------


@in_both_forms
def test_other_calls_raise_and_name_the_leaf(folder, trusted):
    f = load(folder / "statics.fastjit", allow=("tests",), trusted=trusted)
    layer, x = functions.layer(), functions.x()
    other_scale = eqx.tree_at(lambda m: m.scale, layer, 2.0)
    for args, message in (
        ((layer, x[:1]), r"`x`.*\(2, 3\).*\(1, 3\)"),
        ((layer, x.astype(int)), "`x`.*int32"),
        ((layer, x, 3), "`n` was int 2 and is now int 3"),
        ((layer, x, 2.0), "`n` was int 2 and is now float"),
        ((layer, x, True), "`n` was int 2 and is now bool"),
        ((layer, x, jnp.ones(())), "`n` was int 2 and is now array"),
        ((layer, 1.0), "`x` was array and is now float"),
        ((layer, [x]), "`x` was array and is now list"),
        ((other_scale, x), r"`layer\.scale` was float '0.5' and is now float '2.0'"),
        ((layer, x, object()), r"`n` cannot be exported: <object>: "),
        ((layer,), "missing"),
    ):
        with pytest.raises(TypeError, match=message):
            f(*args)
        f(layer, x)

    with pytest.raises(TypeError, match="`name`"):
        f(layer, x, name="y")
    with pytest.raises(TypeError, match="`act` was default"):
        f(layer, x, act=jnp.sin)
    f(layer, x, name="x", n=2)


@pytest.mark.parametrize(
    ("static", "equal", "other"),
    [
        (0.0, 0.0, -0.0),
        (float("nan"), float("nan"), 0.0),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"a": 1, "c": 2}),
        ({"b", "a"}, {"a", "b"}, {"a"}),
        ((1, [2]), (1, [2]), (1, (2,))),
        (functions.Config(1.0), functions.Config(1.0), functions.Config(2.0)),
        (functions.Metres(1.0), functions.Metres(1.0), functions.Metres(-0.0)),
        (functions.Mode.FAST, functions.Mode.FAST, functions.Mode.SLOW),
        (jax.nn.relu, jax.nn.relu, jax.nn.gelu),
        (slice(1, 2), slice(1, 2), slice(1, 3)),
        (jnp.dtype("int8"), np.dtype("int8"), np.dtype("int16")),
        (b"x", b"x", "x"),
        (..., ..., None),
    ],
    ids=lambda x: type(x).__name__,
)
def test_statics_are_compared_by_the_contract(path, static, equal, other):
    """By types and parts, whichever process they are from."""

    class Box:  # its state is its value
        __hash__ = None

        def __init__(self, value):
            self.value = value

        def __eq__(self, other):
            return self.value == other.value

    functions.Box = Box
    Box.__qualname__, Box.__module__ = "Box", functions.__name__
    for make in (lambda x: x, lambda x: Box(x)):
        filter_jit(lambda x, static: x + 1).export(_X, make(static)).save(path)
        f = load(path)
        f(functions.x(), make(equal))
        with pytest.raises(TypeError, match="`static"):
            f(functions.x(), make(other))

    del functions.Box


def test_defaults_and_keywords_are_given_as_in_python(path):
    """Defaults may be omitted or given, and keywords are in any order."""

    def f(x, axes=(0, 1), act=lambda x: x):
        return act(x).sum(axes)

    equal = tuple(range(2))  # another object than the default
    for exported in ((), (equal,)):
        filter_jit(f).export(_X, *exported).save(path)
        loaded = load(path)
        for args in ((), (equal,)):
            assert float(loaded(functions.x(), *args)) == 15
        with pytest.raises(TypeError, match="`axes`"):
            loaded(functions.x(), (0,))

    one, two = jnp.ones(2), jnp.full(2, 2.0)
    filter_jit(functions.add).export(one, a=one, b=two).save(path)
    assert float(load(path)(one, b=two, a=one)[0]) == 4


def test_its_signature_is_that_of_the_function(folder):
    f = load(folder / "statics.fastjit", allow=("tests",))
    loaded = inspect.signature(f).parameters.values()
    original = inspect.signature(functions.statics).parameters.values()
    for a, b in zip(loaded, original, strict=True):
        assert (a.name, a.kind) == (b.name, b.kind)
        assert (a.default is a.empty) == (b.default is b.empty)
    assert f.__name__ == "statics" and "statics" in repr(f)
    assert load(folder / "weak.fastjit").__doc__.startswith("Results of a weak type")


def test_a_copy_is_the_function_itself(folder):
    f = load(folder / "mlp.fastjit")
    assert copy.copy(f) is copy.deepcopy(f) is f
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(f)


# --- what is refused ------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_what_cannot_be_written_is_refused_before_tracing():
    class Local(eqx.Module):
        x: jax.Array

    f = filter_jit(lambda model, x: functions.ran.append("f") or x)
    functions.ran.clear()
    for argument, message in (
        (eqx.nn.Lambda(lambda x: x), r"`model\.fn` cannot be exported: .*<lambda>"),
        (
            [1, (Local(jnp.ones(2)),)],
            r"`model\[1\]\[0\]` cannot be exported: <test_what",
        ),
        (functions.Stranger(jnp.ones(2)), "`model` cannot be exported: .*its class"),
        (functions.Static(jnp.ones(2)), r"`model\.x` cannot be exported"),
        (object(), r"`model` cannot be exported: <object>: .*compared by identity"),
        ({"a": [object()]}, r"`model\['a'\]\[0\]` cannot be exported"),
    ):
        with pytest.raises(ValueError, match=message):
            f.export(argument, _X)
    assert not functions.ran


def test_results_that_cannot_be_written_are_refused():
    with pytest.raises(ValueError, match=r"`<result>\[1\]` cannot be exported"):
        filter_jit(lambda x: (x, object())).export(_X)
    with pytest.raises(ValueError, match="cannot be built from a file"):
        filter_jit(lambda x: (x, slice(1, 2))).export(_X)


def test_a_static_that_was_changed_since_export_is_refused(path):
    """The function may be traced again to save it."""
    config = functions.Config(1.0, ["a"])
    exported = filter_jit(lambda x, config: x).export(_X, config)
    config.names.append("b")
    with pytest.raises(ValueError, match="was changed since `export`"):
        exported.save(path)
    assert not path.exists()


@pytest.mark.parametrize("error", [NotImplementedError, TypeError, ValueError])
def test_what_jax_cannot_export_is_one_error(path, monkeypatch, error):
    """Of shardings that are by no mesh, it raises a `TypeError`."""

    def fail(*args, **kwargs):
        raise error("why")

    exported = filter_jit(functions.weak).export(_X)
    monkeypatch.setattr(jax.export, "export", fail)
    with pytest.raises(
        ValueError, match=r"weak cannot be exported \(compiled=False\): why"
    ):
        exported.save(path)
    assert not path.exists()


def test_options_of_the_compiler_are_refused():
    options = {"xla_cpu_enable_fast_math": True}
    with pytest.raises(ValueError, match="weak has compiler_options"):
        filter_jit(functions.weak, compiler_options=options).export(_X)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: jax.debug.print("{}", x),
        lambda x: jax.experimental.io_callback(print, None, x),
        lambda x: eqx.error_if(x, x.sum() > 0, "no"),
        lambda x: jax.pure_callback(np.sin, x, x, vmap_method="sequential"),
    ],
    ids=["print", "io", "check", "callback"],
)
def test_host_callbacks_are_refused(call):
    def f(x):
        return call(x)

    with pytest.raises(ValueError, match=r"f has host callbacks.*EQX_ON_ERROR=nan"):
        filter_jit(f).export(_X)


def test_without_flatbuffers_nothing_is_traced(folder):
    out = run_program("without_flatbuffers.py", folder / "weak.fastjit").stdout
    exporting, loading = out.splitlines()
    assert exporting == "exporting needs flatbuffers: pip install flatbuffers"
    assert "weak.fastjit' cannot be loaded" in loading and "flatbuffers" in loading


def test_a_path_that_cannot_be_written_is_an_error_at_once(path, monkeypatch):
    exported = filter_jit(lambda x: x + 1).export(_X)
    monkeypatch.setattr(jax.export, "export", None)
    with pytest.raises(FileNotFoundError, match="no/such"):
        exported.save(path / "no" / "such")
    assert "<lambda>" in repr(exported)


def test_an_instance_among_the_args_is_refused():
    class Model(eqx.Module):
        @filter_jit
        def call(*args):
            return args[1]

    with pytest.raises(ValueError, match=r"\*args"):
        Model().call.export(jnp.ones(2))
