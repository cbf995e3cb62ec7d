"""Regression tests: faults found by running whole programs of many people's styles."""

import pytest

from eqx_fastjit.doctor import _hints, _text
from eqx_fastjit.doctor._report import Report, TimeSpent
from eqx_fastjit.doctor._rows import rows
from tests.doctor_records import seen_of, watch_of
from tests.doctor_reports import check_clean, check_fault, reports_of_programs


# Kind, leaf, line, message (a part) and fix (all of it, after the kind's own words) of
# the only finding; the program; and what its fix replaces.
FAULTS = {
    # Nothing was said: the object is compared by its identity.
    "attribute_of_a_trainer": (
        "stale-global",
        "self.rate",
        "return w - self.rate * w",
        "attribute `self.rate` was 0.1 when Trainer.step was traced and is 0.01 at ",
        "Pass `self.rate` as an argument, or call `Trainer.step.clear_cache()` after ",
        """
        class Trainer:
            def __init__(self):
                self.rate = 0.1
                self.steps = 0

            @eqx.filter_jit
            def step(self, w):
                return w - self.rate * w

        trainer = Trainer()
        for i in range(4):
            if i == 2:
                trainer.rate = 0.01
            x = trainer.step(x)
            trainer.steps += 1
        """,
        [
            ("step(self, w)", "step(self, w, rate)"),
            ("w - self.rate * w", "w - rate * w"),
            ("step(x)", "step(x, jnp.asarray(trainer.rate))"),
        ],
    ),
    # Also of a bound method, in a function inside, and in another method.
    "model_of_a_bound_method": (
        "stale-global",
        "self.model",
        "return jax.vmap(lambda v: self.model(v))(xs)",
        "attribute `self.model` was a Linear when Agent.act was traced and is another ",
        "Pass `self.model` as an argument, or call ",
        """
        class Agent:
            def __init__(self):
                self.model = eqx.nn.Linear(3, 3, key=jax.random.key(0))
                self.calls = 0
                self.jitted = eqx.filter_jit(self.act)

            def forward(self, xs):
                return jax.vmap(lambda v: self.model(v))(xs)

            def act(self, xs):
                self.calls += 1
                return self.forward(xs) * self.calls

        agent = Agent()
        for i in range(3):
            agent.jitted(jnp.ones((2, 3)))
            agent.model = eqx.nn.Linear(3, 3, key=jax.random.key(i))
        """,
        [
            ("def forward(self, xs)", "def forward(self, model, xs)"),
            ("def act(self, xs)", "def act(self, model, xs)"),
            ("self.model(v)", "model(v)"),
            ("self.forward(xs)", "self.forward(model, xs)"),
            ("agent.jitted(", "agent.jitted(agent.model, "),
        ],
    ),
    # Also behind what wraps the method.
    "setting_of_a_method_under_grad": (
        "stale-global",
        "self.scale",
        "return jnp.sum(self.scale * x * x)",
        "attribute `self.scale` was 1.0 when Agent.loss was traced and is 0.125 at ",
        "Pass `self.scale` as an argument, or call ",
        """
        class Agent:
            def __init__(self):
                self.scale = 1.0
                self.jitted = eqx.filter_jit(eqx.filter_grad(self.loss))

            def loss(self, x):
                return jnp.sum(self.scale * x * x)

        agent = Agent()
        for _ in range(3):
            agent.jitted(x)
            agent.scale /= 2
        """,
        [
            ("loss(self, x)", "loss(self, x, scale)"),
            ("jnp.sum(self.scale", "jnp.sum(scale"),
            ("agent.jitted(x)", "agent.jitted(x, jnp.asarray(agent.scale))"),
        ],
    ),
    # It was to pass numbers that change as arrays.
    "name_of_a_file": (
        "static-churn",
        "batch['name']",
        "step(x, batch)",
        "'img_1.png' (str) -> 'img_2.png' (str) -> ",
        "A text is static, and each new one recompiles. Leave texts that the function ",
        """
        @eqx.filter_jit
        def step(w, batch):
            return w * batch["image"]

        for i in range(7):
            batch = {"name": f"img_{i}.png", "image": x}
            step(x, batch)
        """,
        [("step(x, batch)", "step(x, {'image': batch['image']})")],
    ),
    # It was to write `eqx.filter_jit(eqx.filter_value_and_grad(objective))(w)`, which
    # compiles each time.
    "loop_in_a_function_of_a_function": (
        "outside-jit",
        "scan",
        "value, grads = eqx.filter_value_and_grad(objective)(w)",
        "`scan` was compiled ",
        "Decorate `train` with `@eqx.filter_jit`: it compiles as one program. "
        "(`objective` is a new function in each call, and would be ",
        """
        def train(w, data):
            def objective(w):
                def one(carry, x):
                    for i in range(20):
                        carry = jnp.sin(w * carry + x) * i
                    return jnp.sort(carry), None

                return jnp.sum(jax.lax.scan(one, w, data)[0])

            value, grads = eqx.filter_value_and_grad(objective)(w)
            return w - 0.1 * grads

        for i in range(6):
            x = train(x, i * jnp.ones((4, 3)))
        """,
        [("def train", "@eqx.filter_jit\ndef train")],
    ),
    # It was `A[<flat index 0>]`.
    "children_of_a_class_without_names": (
        "shape-churn",
        "A.data",
        "product(A, w, w)",
        "`A.data` had the shapes (3,), (4,), (5,), (6,), (7,)",
        "Drop the ragged last batch, or fix the length.",
        """
        from jax.experimental import sparse

        @eqx.filter_jit
        def product(A, v, w):
            return A @ v + w

        w = jnp.ones(7)
        for i in range(3, 8):
            A = sparse.BCOO.fromdense(jnp.diag((jnp.arange(7) < i).astype(float)))
            product(A, w, w)
        """,
        [("astype(float))", "astype(float)), nse=7")],
    ),
    "the_same_array_twice": (
        "dtype-churn",
        "pair.b",
        "pair = step(pair)",
        "`pair.b` changed, dtype int32 -> float32",
        "",
        """
        @jax.tree_util.register_pytree_node_class
        class Pair:
            def __init__(self, a, b, n=0):
                self.n, self.a, self.b = n, a, b

            def tree_flatten(self):
                return (self.n, self.a, self.b), None

            @classmethod
            def tree_unflatten(cls, _, children):
                n, a, b = children
                return cls(a, b, n)

        @eqx.filter_jit
        def step(pair):
            return Pair(pair.a, pair.b + 0.5 * pair.a)

        zeros = jnp.zeros(3, int)
        pair = Pair(zeros, zeros)
        for _ in range(3):
            pair = step(pair)
        """,
        [("Pair(zeros, zeros)", "Pair(zeros, zeros.astype(float))")],
    ),
}

# Programs without a finding or a note.
CLEAN = {
    # As in the cells of a notebook. The first `update` had a stale `loss`.
    "functions_that_are_defined_again": """
        @eqx.filter_jit
        def loss(w):
            return jnp.sum(w * w)

        @eqx.filter_jit
        def update(w):
            return w - jax.grad(loss)(w)

        update(x)

        @eqx.filter_jit
        def loss(w):
            return jnp.sum(w * w * w)

        @eqx.filter_jit
        def update(w):
            return w - 0.1 * jax.grad(loss)(w)

        update(x)
        """,
    # An object that is a pytree is traced, one that is compared by its fields is traced
    # again, and what only the trace itself writes is no setting.
    "objects_that_are_not_compared_by_identity": """
        @jax.tree_util.register_pytree_node_class
        class Scale:
            def __init__(self, value):
                self.value = value

            def tree_flatten(self):
                return (self.value,), None

            @classmethod
            def tree_unflatten(cls, _, children):
                return cls(*children)

        @dataclasses.dataclass(eq=True, unsafe_hash=True)
        class Config:
            rate: float

        class Counts:
            n = 0

        @eqx.filter_jit
        def step(w, scale, config, counts):
            counts.n += 1
            return w * scale.value * config.rate * counts.n

        scale, config, counts = Scale(x), Config(0.1), Counts()
        for i in range(3):
            step(x, scale, config, counts)
            scale.value = scale.value + 1
            config.rate = 0.1 * (i // 2)
        """,
    # There was a note on the program's functions under plain `jax.jit`.
    "functions_of_a_library_under_jit": """
        import optax

        optimiser = optax.adam(1e-3)
        optimiser.update(x, optimiser.init(x))
        """,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of_programs(tmp_path_factory.mktemp("programs"), FAULTS, CLEAN)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_and_its_fix(name, engine, reports):
    check_fault(reports[engine], name, *FAULTS[name][:5])


@pytest.mark.parametrize("name", CLEAN)
def test_no_finding(name, engine, reports):
    check_clean(reports[engine][name])


@pytest.mark.one_engine
def test_threads_that_compile_at_once():
    """A second run was promised to take -30.5 s."""
    seen = [seen_of(seconds=(0, 0, 50.0, 0)), seen_of(seconds=(0, 0, 70.0, 0))]
    (hint,) = _hints.make_hints(watch_of(*seen), TimeSpent(60.0, ()), set())
    assert hint.seconds == pytest.approx(54.0)
    assert hint.message == (
        "XLA's compiler ran for 1 min 0 s of 1 min 0 s. With JAX's persistent cache, a "
        "second run would take about 6 s"
    )
    report = Report("p.py", 0, 60.0, (), tuple(rows(seen, [])), (), ())
    assert _text.summary(report) == (
        "ran for 1 min 0 s; its threads took 2 min 0 s to trace, lower and compile 2 "
        "programs"
    )
