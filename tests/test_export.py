"""Exported functions: saved here, and loaded in fresh processes."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import ShapeDtypeStruct

from eqx_fastjit import _function, filter_jit, load

from . import exported_functions as functions


pytest.importorskip("flatbuffers", reason="the portable form needs it")

_ROOT = Path(__file__).parent.parent
FORMS = {"portable": False, "compiled": True}
_X = ShapeDtypeStruct((2, 3), jnp.float32)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "function.fastjit"


def run_fresh(code, **env):
    """Run code in a fresh process, on the engine of this test."""
    started = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        cwd=_ROOT,
        env={**os.environ, **env},
    )
    assert started.returncode == 0, started.stderr
    return started.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with each function in a file that has both payloads."""
    out = tmp_path_factory.mktemp("files")
    for name, test in functions.FUNCTIONS.items():
        exported = functions.filter_jit(test).export(*test.arguments())
        exported.save(out / f"{name}.fastjit", compiled=True)
    return out


@pytest.mark.one_engine
@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_a_fresh_process(folder, trusted):
    out = run_fresh(
        "import jax\n"
        "jax.config.update('jax_numpy_dtype_promotion', 'strict')\n"
        "from tests import exported_functions as functions\n"
        f"functions.check({str(folder)!r}, functions.FUNCTIONS, {trusted})\n"
    )
    assert out.count("same") == len(functions.FUNCTIONS)


@pytest.mark.one_engine
@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_eight_devices(tmp_path, trusted):
    tests = functions.sharded_functions()
    for name, test in tests.items():
        exported = functions.filter_jit(test).export(*test.arguments())
        exported.save(tmp_path / f"{name}.fastjit", compiled=True)
    out = run_fresh(
        "import jax\n"
        "jax.config.update('jax_num_cpu_devices', 8)\n"
        "from tests import exported_functions as functions\n"
        "tests = functions.sharded_functions()\n"
        f"functions.check({str(tmp_path)!r}, tests, {trusted})\n"
    )
    assert out.count("same") == len(tests)
    for name in tests:
        # The number of devices has to match: a single device is refused.
        with pytest.raises(AssertionError, match="device"):
            run_fresh(
                "import eqx_fastjit, jax.numpy as jnp\n"
                f"f = eqx_fastjit.load({str(tmp_path / name)!r} + '.fastjit')\n"
                "f(jnp.ones((8, 4)))\n"
            )


@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_checks_raise_at_the_call(folder, trusted):
    f = load(folder / "checked.fastjit", trusted=trusted)
    for place, message in (
        ((0, 0), "first"),
        ((1, 1), "in the loop"),
        ((1, 2), "under vmap"),
    ):
        with pytest.raises(eqx.EquinoxRuntimeError, match=message):
            f(functions.x().at[place].set(11.0), 3)
        with pytest.raises(eqx.EquinoxRuntimeError, match=message):
            # The loaded function also works inside another jitted function.
            filter_jit(f)(functions.x().at[place].set(11.0), 3)
    with pytest.raises(eqx.EquinoxRuntimeError, match="far out"):
        f(functions.x().at[0, 1].set(21.0), 3)
    with pytest.raises(eqx.EquinoxRuntimeError, match="low"):
        f(functions.x() - 20.0, 3)
    assert f(functions.x(), 3)[1] == 3
    f = load(folder / "checked_key.fastjit", trusted=trusted)
    with pytest.raises(eqx.EquinoxRuntimeError, match="large"):
        f(jax.random.key(0), functions.x() + 11.0)


@pytest.mark.one_engine
@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_loops_end_after_a_failed_check(folder, trusted):
    texts = ["before the loop", "in the body", "in a batch", "in the condition"]
    out = run_fresh(
        "import equinox as eqx, eqx_fastjit\n"
        "from tests import exported_functions as functions\n"
        f"f = eqx_fastjit.load({str(folder / 'loops.fastjit')!r}, trusted={trusted})\n"
        "x = functions.x()\n"
        "f(x)\n"
        "for at, value in (((0, 0), -1.), ((0, 1), 0.), ((1, 2), 0.), ((1, 1), 0.)):\n"
        "    try:\n"
        "        print(f(x.at[at].set(value)))\n"
        "    except eqx.EquinoxRuntimeError as e:\n"
        f"        print(*[text for text in {texts} if text in str(e)])\n"
    )
    assert out.splitlines() == texts


@pytest.mark.one_engine
def test_checks_are_no_effects(folder):
    """JAX dispatches programs with effects in Python, which is slow."""
    for name in ("checked", "loops"):
        f = load(folder / f"{name}.fastjit", trusted=True)
        assert f._function.payloads.reason is None
        portable = f._function.payloads.portable
        arguments = functions.FUNCTIONS[name].arguments()[:1]
        assert not portable.trace(*arguments).jaxpr.effects


@pytest.mark.one_engine
def test_a_part_without_checks_stays_as_it_is():
    """`checkify` would pass the errors of other parts through this one."""

    def f(x):
        x = eqx.error_if(x, x < 0, "negative")
        return jax.lax.scan(lambda carry, y: (carry + y, y), x, jnp.ones(3))

    text = str(filter_jit(f).export(jnp.ones(()))._traced.jaxpr)
    assert "num_carry=1" in text and "cond[" not in text


@pytest.mark.one_engine
@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_calls_on_virtual_devices_block(path, trusted, waited):
    sharding = jax.sharding.NamedSharding(
        functions.mesh(), jax.sharding.PartitionSpec("d")
    )
    x = jax.device_put(jnp.ones(16), sharding)
    filter_jit(lambda x: x.sum()).export(x).save(path, compiled=True)
    f = load(path, trusted=trusted)
    waited.clear()
    for n in (1, 2, 3):
        f(x)
        assert waited == [()] * n


@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", ["mlp", "checked"])
def test_gradients(path, name, trusted):
    test = functions.FUNCTIONS[name]
    f = functions.filter_jit(test)
    arguments = test.arguments()
    f.export(*arguments).save(path, compiled=True, vjp_order=1)

    def gradient(f):
        return eqx.filter_grad(lambda args: jnp.sum(jax.tree.leaves(f(*args))[0]))(
            arguments
        )

    loaded = load(path, trusted=trusted)
    # The gradients of the jitted function.
    theirs = jax.tree.leaves(gradient(f))
    for a, b in zip(jax.tree.leaves(gradient(loaded)), theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)
    functions.check_same(loaded(*arguments), f(*arguments), committed=trusted)
    f.export(*arguments).save(path, compiled=True)
    with pytest.raises(ValueError, match="VJP"):
        gradient(load(path, trusted=trusted))


@pytest.mark.parametrize("trusted", FORMS.values(), ids=FORMS)
def test_other_calls_raise_and_name_the_leaf(folder, trusted):
    allow = ("tests",)
    f = load(folder / "statics.fastjit", allow=allow, trusted=trusted)
    layer, x = functions.layer(), functions.x()
    for args, message in (
        ((layer, x[:1]), r"`x` was float32\[2,3\] and is now float32\[1,3\]"),
        ((layer, x.astype(int)), r"`x` was float32\[2,3\] and is now int32\[2,3\]"),
        ((layer, np.ones((2, 3))[0]), r"`x` was float32\[2,3\]"),
        ((layer, x, 3), "the static `n` was 2 and is now 3"),
        ((layer, x, 2.0), "the static `n` was 2 and is now 2.0"),
        ((layer, x, jnp.ones(())), "`n` was the static 2 and is now an array"),
        ((layer, 1.0), "`x` was an array and is now static"),
        ((layer, [x]), r"expected `x`, got `x\[0\]`"),
        ((eqx.tree_at(lambda m: m.scale, layer, 2.0), x), "the static `layer.scale`"),
        ((layer,), "missing 1 required"),
    ):
        with pytest.raises(TypeError, match=message):
            f(*args)
        f(layer, x)
    with pytest.raises(TypeError, match="`name`"):
        f(layer, x, name="y")
    f(layer, x, name="x", n=2)


def test_equal_partials_do_not_pile_up(folder, engine, monkeypatch):
    monkeypatch.setattr(_function, "_MAX_SPECIALIZATIONS", 8)
    f = load(folder / "statics.fastjit", allow=("tests",))
    x = functions.x()
    for _ in range(20):
        f(functions.layer(), x)  # each call has a different partial
    assert len(f._function.specializations) <= 9
    f.clear_cache()
    f(functions.layer(), x)
    with jax.disable_jit():
        f(functions.layer(), x)


@pytest.mark.one_engine
def test_the_signature_is_the_functions_own(folder):
    f = load(folder / "statics.fastjit", allow=("tests",))
    ours, theirs = inspect.signature(f), inspect.signature(functions.statics)
    assert [(p.name, p.kind) for p in ours.parameters.values()] == [
        (p.name, p.kind) for p in theirs.parameters.values()
    ]
    assert ours.parameters["n"].default == 2
    assert f.__name__ == "statics" and "statics" in repr(f)
    assert load(folder / "weak.fastjit").__doc__.startswith("Results of a weak type")


# --- properties of one function ---


@pytest.mark.one_engine
def test_modules_and_methods_keep_their_arrays(path, tmp_path):
    # A class that other processes cannot import.
    (tmp_path / "vanishing.py").write_text(
        "import equinox as eqx, eqx_fastjit, jax\n"
        "class Model(eqx.Module):\n"
        "    linear: eqx.nn.Linear\n"
        "    def __init__(self):\n"
        "        self.linear = eqx.nn.Linear(3, 2, key=jax.random.key(0))\n"
        "    def __call__(self, x):\n"
        "        return self.linear(x)\n"
        "    @eqx_fastjit.filter_jit\n"
        "    def apply(self, x, n=2):\n"
        "        return self(x) * n\n"
        "model = Model()\n"
        "closure = eqx_fastjit.filter_jit(lambda x: jax.vmap(model)(x[None])[0])\n"
    )
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport vanishing as v\n"
    for what, text in (
        ("module", "eqx_fastjit.filter_jit(v.model)"),
        ("method", "v.model.apply"),
        ("closure", "v.closure"),
    ):
        saved = run_fresh(
            f"{code}import eqx_fastjit, jax.numpy as jnp\n"
            f"f = {text}\nx = jnp.arange(3.0)\n"
            f"f.export(x).save({str(path)!r}, compiled=True)\nprint(f(x))\n"
        )
        assert 2 * saved == run_fresh(
            "import eqx_fastjit, jax.numpy as jnp\n"
            "for trusted in (False, True):\n"
            f"    f = eqx_fastjit.load({str(path)!r}, trusted=trusted)\n"
            "    print(f(jnp.arange(3.0)))\n"
        ), what


@pytest.mark.one_engine
def test_lapack_is_loaded_only_for_programs_that_call_it(folder):
    for name, expected in (("weak", False), ("linalg", True)):
        out = run_fresh(
            "import sys, eqx_fastjit, jax.numpy as jnp\n"
            f"f = eqx_fastjit.load({str(folder / name)!r} + '.fastjit')\n"
            "f(jnp.arange(6.0).reshape(2, 3))\n"
            "print('scipy.linalg' in sys.modules)\n"
        )
        assert out == f"{expected}\n", name


@pytest.mark.one_engine
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
    with pytest.raises(TypeError, match=r"`x` was float32\[b,4\] and is now"):
        loaded(model, jnp.ones((3, 5)))
    with pytest.raises(ValueError, match="symbolic"):
        exported.save(path, compiled=True)


@pytest.mark.one_engine
def test_sizes_that_do_not_agree_name_the_leaf(path):
    b, c = jax.export.symbolic_shape("b, c")
    struct = ShapeDtypeStruct((b, c), jnp.float32)
    filter_jit(lambda x, y: x + y).export(struct, struct).save(path)
    loaded = load(path)
    loaded(jnp.ones((2, 3)), jnp.ones((2, 3)))
    with pytest.raises(TypeError, match=r"`?y"):
        loaded(jnp.ones((2, 3)), jnp.ones((4, 3)))


@pytest.mark.one_engine
def test_platforms_by_name(path):
    f = filter_jit(lambda x: x + 1)
    f.export(_X).save(path, platforms=("cpu", "cuda"))
    assert float(load(path)(functions.x())[0, 0]) == 1
    f.export(_X).save(path, platforms=("cuda",))
    with pytest.raises((ValueError, TypeError), match="cuda"):
        load(path)(functions.x())


@pytest.mark.one_engine
def test_inside_of_other_functions(folder):
    for trusted in FORMS.values():
        f = load(folder / "mlp.fastjit", trusted=trusted)
        arguments = functions.FUNCTIONS["mlp"].arguments()
        want = f(*arguments)
        np.testing.assert_allclose(filter_jit(f)(*arguments), want, rtol=1e-6)
        with jax.disable_jit():
            np.testing.assert_allclose(f(*arguments), want, rtol=1e-5)
        eqx.clear_caches()
        jax.clear_caches()
        np.testing.assert_allclose(f(*arguments), want, rtol=1e-6)


# --- what is refused ---


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.one_engine
def test_what_cannot_be_written_is_refused():
    class Local(eqx.Module):
        x: jax.Array

    class Static(eqx.Module):
        x: jax.Array = eqx.field(static=True, converter=np.asarray)

    f = filter_jit(lambda model, x: x)
    model = eqx.nn.Lambda(lambda x: x)
    for argument, message in (
        (model, r"`model\.fn` cannot be exported: <function .*lambda"),
        ([1, (Local(jnp.ones(2)),)], r"`model\[1\]\[0\]` cannot be exported: .*Local"),
        (Static([1.0, 2.0]), r"`model` cannot be exported: .*Static"),
        (object(), r"`model` cannot be exported: <object"),
    ):
        with pytest.raises(ValueError, match=message):
            f.export(argument, _X)
    with pytest.raises(ValueError, match="<result>"):
        filter_jit(lambda x: (x, object())).export(_X)


@pytest.mark.one_engine
@pytest.mark.parametrize("kind", ["print", "callback", "io"])
def test_host_callbacks_are_refused(kind):
    def f(x):
        if kind == "print":
            jax.debug.print("{}", x)
        elif kind == "io":
            jax.experimental.io_callback(print, None, x)
        else:
            x = jax.pure_callback(np.sin, x, x, vmap_method="sequential")
        return eqx.error_if(x, x.sum() > 0, "no")

    with pytest.raises(ValueError, match="f has host callbacks"):
        filter_jit(f).export(_X)


@pytest.mark.one_engine
def test_save_says_what_it_cannot_do(path):
    exported = filter_jit(lambda x: x).export(_X)
    with pytest.raises(ValueError, match="both false"):
        exported.save(path, portable=False)
    with pytest.raises(ValueError, match="need `portable`"):
        exported.save(path, portable=False, compiled=True, vjp_order=1)
    with pytest.raises(FileNotFoundError, match="such"):
        exported.save(path / "no" / "such")
    assert not path.exists() and list(path.parent.iterdir()) == []


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "name",
    [
        "jax._src.checkify:error_checks",
        "jax._src.checkify:update_error",
        "jax._src.checkify:Error",
        "jax._src.checkify:FailedCheckError",
        "jax._src.callback:pure_callback_p",
    ],
)
def test_without_a_private_name_checks_are_refused(take_away, name):
    take_away(name)
    test = functions.FUNCTIONS["checked"]
    with pytest.raises(ValueError, match="checks"):
        functions.filter_jit(test).export(*test.arguments())
