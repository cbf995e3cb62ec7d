"""Regression tests: faults found in an eighth adversarial review of the engine."""

from tests.processes import run_code


_COMMON = """
import equinox as eqx
import jax
import jax.numpy as jnp

import eqx_fastjit


X = jnp.arange(1.0, 4.0)
"""


def _check(code, engine):
    out = run_code(code, common=_COMMON, engine=engine)
    assert out.returncode == 0, out.stderr[-2000:]


def test_proxies_of_functions(engine):
    """They claim to be functions, as those of `wrapt.decorator` do."""
    _check(
        """
        class Proxy:
            def __init__(self, inner, **shown):
                vars(self).update(inner=inner, **shown)

            @property
            def __class__(self):
                return type(self.inner)

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def __get__(self, instance, owner=None):
                return Proxy(self.inner.__get__(instance, owner))

            def __call__(self, *args, **kwargs):
                return self.inner(*args, **kwargs)

        def double(x, n=2):
            traces.append(n)
            return x * n

        class Model(eqx.Module):
            w: jax.Array

            def call(self, x, n=2):
                traces.append(n)
                return self.w * x * n

            __call__ = Proxy(call)

        for proxy in (
            Proxy(double),
            Proxy(double, __wrapped__=double),
            Model(jnp.ones(3)),
        ):
            traces = []
            f = eqx_fastjit.filter_jit(proxy)
            assert (f(X) == 2 * X).all() and (f(X) == 2 * X).all()
            assert (f(X, 3) == 3 * X).all() and (f(X, n=3) == 3 * X).all()
            assert traces == [2, 3]
            assert (f(X, 2) == 2 * X).all()
            assert (f.lower(X).compile()(X) == 2 * X).all()
        """,
        engine,
    )


def test_two_arrays_of_one_path(engine):
    """JAX rejected to donate them: it counted the names of the arguments."""
    _check(
        """
        @eqx_fastjit.filter_jit(donate="all-except-first")
        def f(x, /, **kwargs):
            return x * 2, kwargs["x"] + 1

        x, y = jnp.ones(3), jnp.ones(3)
        a, b = f(x, x=y)
        assert (a == 2).all() and (b == 2).all()
        assert not x.is_deleted() and y.is_deleted()

        class Pair:
            def __init__(self, *parts):
                self.parts = parts

        key = jax.tree_util.GetAttrKey("x")
        jax.tree_util.register_pytree_with_keys(
            Pair,
            lambda pair: ([(key, x) for x in pair.parts], None),
            lambda _, parts: Pair(*parts),
        )
        f = eqx_fastjit.filter_jit(lambda pair: sum(pair.parts), donate="all")
        assert (f(Pair(jnp.ones(3), jnp.ones(3), jnp.ones(3))) == 3).all()

        @eqx_fastjit.filter_jit
        def g(x, /, **kwargs):
            return 1 if kwargs["y"] else 2

        # Names are those of the arguments.
        try:
            g(1, x=jnp.ones(()), y=jnp.ones(()))
        except jax.errors.TracerBoolConversionError as e:
            assert "the argument y" in str(e), e
        """,
        engine,
    )


def test_export_by_jax(engine):
    """`jax.export` took a jitted function for JAX's own, and exported its arrays."""
    _check(
        """
        import jax.export

        class Model(eqx.Module):
            w: jax.Array

            @eqx_fastjit.filter_jit
            def step(self, x):
                return self.w * x

        f = eqx_fastjit.filter_jit(lambda x: {"y": x * 2})
        for jitted in (f, Model(X).step):
            try:
                jax.export.export(jitted)(X)
            except ValueError as e:
                assert "jax.jit" in str(e), e
            else:
                assert False
        exported = jax.export.export(jax.jit(f))(X)
        assert (exported.call(X)["y"] == 2 * X).all()
        lowered = f.trace(X).lower(lowering_platforms=("cpu",))
        assert (lowered.compile()(X)["y"] == 2 * X).all()
        """,
        engine,
    )


def test_names_that_are_properties(engine):
    """The name of the first instance stood for all of its class."""
    _check(
        """
        class Named(eqx.Module):
            name: str = eqx.field(static=True)

            @property
            def __name__(self):
                return self.name

            @property
            def __doc__(self):
                return "is " + self.name

            def __call__(self, x):
                return x * len(self.name)

        for name in ("a", "bb", "a"):
            f = eqx_fastjit.filter_jit(Named(name))
            assert f.__name__ == name and f.__doc__ == "is " + name
            assert (f(X) == len(name) * X).all()
        """,
        engine,
    )


def test_results_whose_classes_check_their_parts(engine):
    """In a Module or a dataclass, they were given an `object()` as a sample."""
    _check(
        """
        import dataclasses
        from typing import Any, NamedTuple

        def check(x):
            assert isinstance(x, jax.Array | jax.ShapeDtypeStruct | None), type(x)

        class Node:
            def __init__(self, x):
                check(x)
                self.x = x

        jax.tree_util.register_pytree_node(
            Node, lambda node: ((node.x,), None), lambda _, xs: Node(*xs)
        )

        @jax.tree_util.register_dataclass
        @dataclasses.dataclass
        class Data:
            x: Any
            n: int = dataclasses.field(metadata=dict(static=True), default=2)

            def __post_init__(self):
                check(self.x)

        class Pair(NamedTuple):
            x: Any
            y: Any

        class Checked(Pair):
            def __new__(cls, x, y):
                check(x)
                return super().__new__(cls, x, y)

        class Holder(eqx.Module):
            part: Any
            n: int = 3

        # Without it (JAX 0.7), a sample is all there is.
        can = hasattr(jax.tree_util.PyTreeDef, "from_node_data_and_children")
        assert can or jax.__version_info__ < (0, 10)
        parts = Node(X), Data(X), Data(X, 5), Checked(X, X), [Node(X), Data(X)]
        for part in parts if can else ():
            for tree in (part, Holder(part), {"a": Holder([Holder(part)])}):
                f = eqx_fastjit.filter_jit(lambda: tree)
                for out in (f(), f(), f.lower().compile()(), f.eval_shape()):
                    same = jax.tree.structure(out) == jax.tree.structure(tree)
                    assert same, (out, tree)
        """,
        engine,
    )
