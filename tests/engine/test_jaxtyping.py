"""Functions whose types jaxtyping and beartype check, under each `filter_jit`."""

import equinox as eqx
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import Array, Float, Int, jaxtyped, TypeCheckError

import eqx_fastjit


typed = jaxtyped(typechecker=beartype)


@typed
class Affine(eqx.Module):
    weight: Float[Array, "out in"]
    bias: Float[Array, " out"]

    def __call__(self, x: Float[Array, " in"]) -> Float[Array, " out"]:
        return self.weight @ x + self.bias


def _plain(jit):
    return jit(typed(_function))


def _method(jit):
    class Model(eqx.Module):
        scale: Float[Array, ""]

        @jit
        @typed
        def apply(
            self, x: Float[Array, " n"], y: Float[Array, " n"], times: int = 1
        ) -> Float[Array, " n"]:
            return self.scale * times * (x + y)

    return Model(jnp.asarray(2.0)).apply


def _function(
    x: Float[Array, " n"], y: Float[Array, " n"], times: int = 1
) -> Float[Array, " n"]:
    return times * (x + y)


def _wrong_result(jit):
    @jit
    @typed
    def f(x: Float[Array, " n"], y: Float[Array, " n"]) -> Int[Array, " n"]:
        return x + y

    return f


def _model(jit):
    @jit
    @typed
    def f(x: Float[Array, " in"], y: Float[Array, " out"]) -> Float[Array, " out"]:
        affine = Affine(jnp.ones((y.size, x.size)), jnp.ones(y.size))
        return affine(x) + y

    return f


_FORMS = [_plain, _method, _wrong_result, _model]
_CALLS = {
    "shapes_alike": (jnp.ones(3), jnp.ones(3)),
    "shapes_differ": (jnp.ones(3), jnp.ones(4)),
    "wrong_dtype": (jnp.ones(3), jnp.ones(3, int)),
    "wrong_rank": (jnp.ones((3, 1)), jnp.ones(3)),
    "wrong_static": (jnp.ones(3), jnp.ones(3), "twice"),
}


def _outcome(f, arguments):
    try:
        return f(*arguments).tolist()
    except TypeCheckError as error:
        return type(error), str(error).partition("\n")[0]
    except TypeError as error:
        return type(error)


@pytest.mark.parametrize("form", _FORMS)
def test_checked_functions_behave_as_under_equinox(form):
    """Results and errors are alike, on the first call and when there is a trace."""
    ours, equinox = form(eqx_fastjit.filter_jit), form(eqx.filter_jit)
    for _ in range(2):
        found = {name: _outcome(ours, x) for name, x in _CALLS.items()}
        assert found == {name: _outcome(equinox, x) for name, x in _CALLS.items()}


def test_dimensions_are_bound_anew_in_each_trace():
    """Two sizes in turn are no error, as neither is bound beyond its trace."""
    f = _plain(eqx_fastjit.filter_jit)
    for n in (3, 4, 3, 4):
        assert f(jnp.ones(n), jnp.ones(n)).shape == (n,)
