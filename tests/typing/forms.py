"""What an editor knows of jitted functions. Checked by pyright, not run."""

from typing import assert_type

import equinox as eqx
import jax

from eqx_fastjit import BoundJit, fast_filter_jit, filter_jit, JitWrapped


@filter_jit
def plain(x: jax.Array, n: int = 2, *, k: str = "a") -> tuple[jax.Array, int]:
    return x, n


@filter_jit(donate="all-except-first")
def donated(x: jax.Array) -> jax.Array:
    return x


class Model(eqx.Module):
    w: jax.Array

    @filter_jit
    def step(self, x: jax.Array, n: int) -> jax.Array:
        return self.w * x * n


def use(x: jax.Array, model: Model) -> None:
    assert_type(plain(x), tuple[jax.Array, int])
    assert_type(plain(x, n=3, k="b"), tuple[jax.Array, int])
    assert_type(donated(x), jax.Array)
    assert_type(model.step(x, 2), jax.Array)
    assert_type(Model.step(model, x, 2), jax.Array)
    assert_type(fast_filter_jit(lambda y: 3)(x), int)
    plain.trace(x, 3).lower().compile()(x, 3)
    model.step.lower(x, 2).compile()(x, 2)
    wrapped: JitWrapped[..., tuple[jax.Array, int]] = plain
    bound: BoundJit[..., jax.Array] = model.step
    del wrapped, bound
    plain("x")  # pyright: ignore[reportArgumentType]
    plain(x, k=1)  # pyright: ignore[reportArgumentType]
    model.step(x)  # pyright: ignore[reportCallIssue]
    donated(x, x)  # pyright: ignore[reportCallIssue]
    filter_jit(donate="some")  # pyright: ignore[reportCallIssue, reportArgumentType]
