"""Regression tests: faults found by comparing whole programs, and their reports."""

import pytest

from tests.doctor_reports import check_clean, check_fault, reports_of_programs


# Kind, leaf, line, a part of the message, the fix and its end; and the same program
# with that fix.
FAULTS = {
    # `std` was not told, nor that there are two edits to make.
    "two_numbers_that_change_in_turn": (
        "static-churn", "state['t']", "state = act(std, state)",
        "-> 4 (int); once, `std` changed, 1.0 (float) -> 0.5 (float)",
        "Replace `state['t']` by `jnp.asarray(state['t'])`, where it is set.",
        "The same goes for `std`.",
        """
        @eqx.filter_jit
        def act(std, state):
            return {"x": std * state["x"], "t": state["t"] + 1}

        std = 1.0
        for _ in range(2):
            state = {"x": x, "t": 0}
            for _ in range(5):
                state = act(std, state)
            std *= 0.5
        """,
        [('"t": 0}', '"t": jnp.asarray(0)}'), ("std = 1.0", "std = jnp.asarray(1.0)")],
    ),
    # Nothing was found: with the count, it was no longer all about numbers.
    "a_number_that_changes_and_a_count": (
        "static-churn", "self.eps", "state = kernel.step(state)",
        "0.5 (float) -> 0.25 (float) -> 0.125 (float) -> 0.0625 (float); once, "
        "`state[1]` changed, 0 (int) -> int32()",
        "Replace `kernel.eps` by `jnp.asarray(kernel.eps)`, where it is set.",
        "The same goes for `state[1]`.",
        """
        class Kernel(eqx.Module):
            eps: typing.Any

            @eqx.filter_jit
            def step(self, state):
                y, count = state
                new, accept = (y - self.eps, count + 1), y.sum() > 0
                return jax.tree.map(lambda a, b: jnp.where(accept, a, b), new, state)

        kernel, state = Kernel(0.5), (x, 0)
        for i in range(8):
            state = kernel.step(state)
            if i % 2:
                kernel = Kernel(kernel.eps / 2)
        """,
        [("Kernel(0.5), (x, 0)", "Kernel(jnp.asarray(0.5)), (x, jnp.asarray(0))")],
    ),
    # Nothing was found, as there is where it is `jnp.asarray(0.0)`.
    "a_carry_that_begins_as_a_number": (
        "static-churn", "carry['loss']", "carry = step(carry, x)",
        "once more by the call",
        "Write `'loss': jnp.asarray(0.0, dtype=jnp.float32)` in line 18.",
        "The same goes for `carry['n']`.",
        """
        @eqx.filter_jit
        def step(carry, x):
            return {"loss": carry["loss"] + x.sum(), "n": carry["n"] + jnp.int32(1)}

        carry = {"loss": 0.0, "n": 0}
        for _ in range(3):
            carry = step(carry, x)
        """,
        [('"loss": 0.0', '"loss": jnp.asarray(0.0, dtype=jnp.float32)'),
            ('"n": 0}', '"n": jnp.asarray(0, dtype=jnp.int32)}')],
    ),
    # Nothing was found: each call was said to be a first one, as that of a function
    # which nobody knows the line of.
    "a_transformed_model_that_is_wrapped_anew": (
        "fresh-function", "MLP", "return predict(x).sum()",
        "MLP was compiled 5 more times by the call",
        "Each new function object", "pass what changes as an argument.",
        """
        model = eqx.nn.MLP(3, 3, 3, 1, key=jax.random.key(0))
        def evaluate(model, x):
            predict = eqx.filter_jit(jax.vmap(model))
            return predict(x).sum()

        for _ in range(6):
            evaluate(model, x[None])
        """,
        [("    predict = eqx.filter_jit(jax.vmap(model))\n", ""),
            ("predict(x)", "predict(model, x)"),
            ("model = eqx", "predict = eqx.filter_jit(lambda m, x: jax.vmap(m)(x))\n"
                "model = eqx")],
    ),
    # It was the line of `softmax` in JAX.
    "a_function_of_a_library_that_is_wrapped_anew": (
        "fresh-function", "softmax", "jitted(x)",
        "softmax was compiled 5 more times by the call",
        "Each new function object", "pass what changes as an argument.",
        """
        for _ in range(6):
            jitted = eqx.filter_jit(functools.partial(jax.nn.softmax, axis=-1))
            jitted(x)
        """,
        [("for _", "jitted = eqx.filter_jit(lambda x: jax.nn.softmax(x, axis=-1))\n"
            "for _"),
            ("    jitted = eqx.filter_jit(functools.partial(jax.nn.softmax, axis=-1))"
                "\n", "")],
    ),
    # Of the other edit that it takes there was only "a new shape or structure".
    "a_number_and_a_length": (
        "static-churn", "t", "score(tokens, t)",
        "; each time with a new shape or structure as well",
        "Write `score(tokens, jnp.asarray(t))`.",
        "Axis 0 of `tokens` padded to 2, 4, 6 is 3 programs in place of 6, for 14% "
        "more elements.",
        """
        @eqx.filter_jit
        def score(tokens, t):
            return tokens.sum() / t

        t = 1.0
        for n in range(6):
            tokens = jnp.ones(n + 1)
            score(tokens, t)
            t *= 0.5
        """,
        [("t = 1.0", "t = jnp.asarray(1.0)"), ("n + 1", "2 * (n // 2) + 2")],
    ),
}  # fmt: skip

CLEAN = {
    # It is not what came back.
    "a_number_and_then_arrays": """
        @eqx.filter_jit
        def scaled(x, scale):
            return x * scale

        scaled(x, 2)
        for i in range(3):
            y = scaled(x, x[i] + 1)
        """,
}


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of_programs(tmp_path_factory.mktemp("programs"), FAULTS, CLEAN)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_and_its_fix(name, engine, reports):
    *expected, end, _, _ = FAULTS[name]
    check_fault(reports[engine], name, *expected)
    (finding,) = reports[engine][name]["findings"]
    assert finding["fix"].endswith(end), finding["fix"]


@pytest.mark.parametrize("name", CLEAN)
def test_no_finding(name, engine, reports):
    check_clean(reports[engine][name])
