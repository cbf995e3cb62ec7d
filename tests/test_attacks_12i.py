"""Regression tests: faults found by running whole programs under the doctor."""

import equinox as eqx
import pytest

from eqx_fastjit import _describe
from tests.doctor_reports import reports_on_engines, write_with_fixes


# Kind, leaf, line and fix of the only finding; and the same program with that fix.
FAULTS = {
    # It was "`hyper` changed, a Hyper", and an array in it would have no hash.
    "number_in_a_frozen_dataclass": (
        "static-churn",
        "hyper.optim.lr",
        "sgd(x, hyper)",
        "Pass `jnp.asarray(hyper.optim.lr)` as an argument of its own",
        """
        @dataclasses.dataclass(frozen=True)
        class Optim:
            lr: float
            decay: float = 1e-4

        @dataclasses.dataclass(frozen=True)
        class Hyper:
            optim: Optim
            name: str = "adam"

        same = Hyper(Optim(0.1))

        @eqx.filter_jit
        def sgd(x, hyper):
            return x - hyper.optim.lr * x

        for i in range(4):
            hyper = Hyper(Optim(lr=0.1 / (i + 1)))
            sgd(x, hyper)
        """,
        [
            ("x, hyper):", "x, hyper, lr):"),
            ("x - hyper.optim.lr", "x - lr"),
            ("sgd(x, hyper)", "sgd(x, same, jnp.asarray(hyper.optim.lr))"),
        ],
    ),
    "number_in_a_static_namespace": (
        "static-churn",
        "model.args.temperature",
        "run(Model(x, argparse.Namespace(",
        "Pass `jnp.asarray(model.args.temperature)` as an argument of its own",
        """
        class Model(eqx.Module):
            w: jax.Array
            args: argparse.Namespace = eqx.field(static=True)

        @eqx.filter_jit
        def run(model, t=None):
            return model.w / (model.args.temperature if t is None else t)

        for i in range(1, 5):
            run(Model(x, argparse.Namespace(text="a" * 70, temperature=0.5 * i)))
        """,
        [("0.5 * i)))", "1.0)), jnp.asarray(0.5 * i))")],
    ),
    # The number is new, the length of the text that `repr` was cut at is not.
    "number_in_a_static_dictionary": (
        "static-churn",
        "model.args['rate']",
        "run(Model(x, {",
        "Pass `jnp.asarray(model.args['rate'])` as an argument of its own",
        """
        class Model(eqx.Module):
            w: jax.Array
            args: dict = eqx.field(static=True)

        @eqx.filter_jit
        def run(model, t=None):
            return model.w * (model.args["rate"] if t is None else t)

        for i in range(1, 5):
            run(Model(x, {"text": "a" * 70, "rate": 0.5 * i}))
        """,
        [("0.5 * i}))", "1.0}), jnp.asarray(0.5 * i))")],
    ),
    # It was "Write `sample(..., jnp.asarray(t))`", which cannot be hashed.
    "number_that_is_static_under_plain_jit": (
        "static-churn",
        "t",
        "sample(x, t=t)",
        "Remove `t` from `static_argnames` or `static_argnums`. Write "
        "`sample(x, t=jnp.asarray(t))`.",
        """
        @functools.partial(jax.jit, static_argnames=("t",))
        def sample(x, t):
            return x / t

        t = 1.0
        for i in range(5):
            sample(x, t=t)
            t = t * 0.9
        """,
        [(', static_argnames=("t",)', ""), ("t=t)", "t=jnp.asarray(t))")],
    ),
    # It was "Replace `state[<flat index 0>]` by ...", which cannot be written.
    "leaf_of_a_state": (
        "weak-type",
        "state[<flat index 0>]",
        "print(validate(state, x))",
        "Replace `state` by `jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype) if "
        "eqx.is_array(x) else x, state)`",
        """
        class Counter(eqx.Module):
            index: eqx.nn.StateIndex = eqx.nn.StateIndex(jnp.asarray(0))

        counter, state = eqx.nn.make_with_state(Counter)()

        @eqx.filter_jit
        def validate(state, data):
            return data * state.get(counter.index)

        for epoch in range(2):
            validate(state, x)
        eqx.tree_serialise_leaves("state.eqx", state)
        state = eqx.tree_deserialise_leaves("state.eqx", state)
        print(validate(state, x))
        """,
        [
            (
                "validate(state, x)",
                "validate(jax.tree.map(lambda x: jnp.asarray(x, dtype=x.dtype) if "
                "eqx.is_array(x) else x, state), x)",
            )
        ],
    ),
    # It was "Replace `ts.stats.ema`, where `ts` is created", which another function is.
    "keyword_in_another_function": (
        "weak-type",
        "ts.stats.ema",
        "ts = step(ts)",
        "Write `ema=jnp.asarray(0.0, dtype=jnp.float32)` in line ",
        """
        class Stats(typing.NamedTuple):
            count: jax.Array
            ema: jax.Array

        class TrainState(eqx.Module):
            stats: Stats

        def create():
            return TrainState(Stats(count=jnp.zeros((), jnp.int32), ema=jnp.array(0.0)))

        @eqx.filter_jit
        def step(ts):
            return TrainState(Stats(ts.stats.count + 1, 0.9 * ts.stats.ema + x.sum()))

        ts = create()
        for _ in range(3):
            ts = step(ts)
        """,
        [("ema=jnp.array(0.0)", "ema=jnp.asarray(0.0, dtype=jnp.float32)")],
    ),
    # It was "`self` changed, a Trainer", with advice on numbers.
    "object_of_a_plain_class": (
        "static-churn",
        "self",
        "self.step(x)",
        "An object that is no pytree is static",
        """
        class Trainer:
            rate = 0.1

            @eqx.filter_jit
            def step(self, x):
                return x - self.rate * x

            def fit(self, x):
                return self.step(x)

        for fold in range(6):
            Trainer().fit(x)
        """,
        [("class Trainer:", "class Trainer(eqx.Module):")],
    ),
    # It was said of `run`, which is no new function.
    "function_in_a_static": (
        "fresh-function",
        "layers[0].config.act",
        "run(build(), x)",
        "Each new function object (a lambda, closure or partial) is traced again",
        """
        @dataclasses.dataclass(frozen=True)
        class Config:
            act: typing.Callable

        class Layer(eqx.Module):
            config: Config = eqx.field(static=True)

        def build():
            return [Layer(Config(lambda z: jnp.tanh(z)))]

        @eqx.filter_jit
        def run(layers, x):
            return layers[0].config.act(x)

        for seed in range(6):
            run(build(), x)
        """,
        [("lambda z: jnp.tanh(z)", "jnp.tanh")],
    ),
    # It was "where `net` is created", which is before the loop.
    "field_that_is_replaced": (
        "static-churn",
        "net.drop.p",
        "run(net, x)",
        "Replace `net.drop.p` by `jnp.asarray(net.drop.p)`, where it is set.",
        """
        class Net(eqx.Module):
            drop: eqx.nn.Dropout

        @eqx.filter_jit
        def run(net, x):
            return net.drop(x, key=jax.random.key(0))

        net = Net(eqx.nn.Dropout(0.5))
        for epoch in range(5):
            net = eqx.tree_at(lambda n: n.drop.p, net, 0.5 - 0.1 * epoch)
            run(net, x)
        """,
        [("net, 0.5 - 0.1 * epoch)", "net, jnp.asarray(0.5 - 0.1 * epoch))")],
    ),
    # It was `jnp.float64`, of which JAX warns that it is not available.
    "integers_of_numpy_that_become_floats": (
        "dtype-churn",
        "reward",
        "loss(reward)",
        "Write `reward = jnp.asarray(rewards[-2:], dtype=jnp.float32)` in",
        """
        @eqx.filter_jit
        def loss(reward):
            return jnp.sum(reward**2)

        rewards = [0, 0]
        for t in range(4):
            reward = np.asarray(rewards[-2:])
            loss(reward)
            rewards.append(0.5 * t)
        """,
        [
            ("= np.asarray(", "= jnp.asarray("),
            ("-2:])\n", "-2:], dtype=jnp.float32)\n"),
        ],
    ),
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("programs")
    state = str(folder / "state.eqx")
    programs = {
        name: (text.replace("state.eqx", state), edits)
        for name, (*_, text, edits) in FAULTS.items()
    }
    write_with_fixes(folder, programs)
    dtypes = {"JAX_NUMPY_DTYPE_PROMOTION": "standard"}
    return reports_on_engines(folder, {"_NUMBERS": 3}, **dtypes)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_and_its_fix(name, engine, reports):
    kind, leaf, line, fix, *_ = FAULTS[name]
    (finding,) = reports[engine][name]["findings"]
    assert (finding["kind"], finding["leaf"]) == (kind, leaf)
    assert finding["fix"].startswith(fix), finding["fix"]
    with open(finding["file"]) as f:
        assert line in f.read().splitlines()[finding["line"] - 1]
    assert 0 < finding["seconds"] < reports[engine][name]["seconds"]
    assert reports[engine][f"{name}_fixed"]["findings"] == []
    assert reports[engine][f"{name}_fixed"]["exit_code"] == 0


class _Static(eqx.Module):
    static: dict = eqx.field(static=True)


def test_fields_of_large_statics():
    """There are at most 100 in all, for a configuration that is a table."""
    words = {str(i): i for i in range(100_000)}
    tables = {
        str(i): {str(j): {str(k): k for k in range(9)} for j in range(9)}
        for i in range(99)
    }
    for static in (words, tables):
        entries = _describe.describe_call([("m", _Static(static))])
        assert len([e for e in entries if e.kind == "static"]) == 101
        assert entries[-1].path.startswith("m.static['")
