"""Random programs, made of nodes, leaves and statics that people use."""

import dataclasses
import random

from ._build import KEYS, LAYERS, LEAVES, MAX_KEYS, OPTIMISERS
from ._programs import CALLS, instances, Node, Program, RETURNS, STYLES, USED
from ._statics import HASHABLE, MUTABLE, STATICS


# Larger programs take long to compile, and show nothing more.
_MAX_INSTANCES = 600
_MAX_TURNING = 200  # each is compiled for three trees
_MAX_OUTPUTS = 200


def random_program(seed: int, index: int) -> Program:
    """A program that depends only on the arguments.

    **Arguments:**

    - `seed`, `index`: the seed, and the index among its programs.
    """
    rng = random.Random(f"{seed}:{index}")
    while True:
        program = _program(rng)
        most = _MAX_TURNING if program.calls == "turns" else _MAX_INSTANCES
        if program.instances() <= most and has_array(program):
            return program


def has_array(program: Program) -> bool:
    """Whether an argument contains an array whose dtype is not `float0`."""
    return any(
        node.kind == "nn" or (node.kind == "leaf" and node.of != "float0")
        for node in program.walk()
    )


def has_mutable(program: Program) -> bool:
    """Whether it contains a static that can be changed in place."""
    return any(
        s.removesuffix("*") in MUTABLE for n in program.walk() for s in n.statics
    )


def _program(rng: random.Random) -> Program:
    model = _model(rng, depth=3)
    args = [model]
    if rng.random() < 0.25:
        args.append(Node("optax", rng.choice(OPTIMISERS), children=(model,)))
    args += [_argument(rng) for _ in range(rng.randint(0, 3))]
    returns = rng.choice(tuple(RETURNS))
    if args[0].kind in ("leaf", "static") or instances(model) > _MAX_OUTPUTS:
        returns = "value"
    program = Program(
        tuple(args),
        style=rng.choices(STYLES, (6, 2, 1, 1))[0],
        used=rng.choices(USED, (5, 2, 2))[0],
        returns=returns,
    )
    has_statics = any(n.statics or n.kind == "static" for n in program.walk())
    weights = (5, 3, has_statics, 2 * has_mutable(program))
    calls = rng.choices(tuple(CALLS), weights)[0]
    return dataclasses.replace(program, calls=calls)


def _argument(rng: random.Random) -> Node:
    """An argument beside the model: data, keys, options, nested batches."""
    choice = rng.random()
    if choice < 0.55:
        return _leaf(rng)
    if choice < 0.75:
        return _static(rng)
    return _container(rng, 1)


def _model(rng: random.Random, depth: int) -> Node:
    """A tree like those of models, parameters or states."""
    choice = rng.random()
    if depth == 0 or choice < 0.04:
        return _leaf(rng)
    if choice < 0.35:
        return _repeat(rng, depth)
    if choice < 0.65:
        return _module(rng, depth)
    if choice < 0.75:
        return Node("nn", rng.choice(LAYERS))
    if choice < 0.83:
        return _registered(rng, depth)
    return _container(rng, depth)


def _part(rng: random.Random, depth: int) -> Node:
    """The content of a field or a container."""
    choice = rng.random()
    if depth == 0 or choice < 0.5:
        return _static(rng) if rng.random() < 0.2 else _leaf(rng)
    if choice < 0.55:
        return Node("None")
    return _model(rng, depth - 1)


def _leaf(rng: random.Random) -> Node:
    of = "float32" if rng.random() < 0.7 else rng.choice(tuple(LEAVES))
    return Node("leaf", of, rng.choice((0, 3)))


def _static(rng: random.Random) -> Node:
    return Node("static", _kind(rng, tuple(HASHABLE)))


def _kind(rng: random.Random, kinds: tuple[str, ...]) -> str:
    return rng.choice(kinds) + "*" * (rng.random() < 0.4)


def _statics(rng: random.Random, most: int) -> tuple[str, ...]:
    kinds = tuple(STATICS) + tuple(MUTABLE)
    return tuple([_kind(rng, kinds) for _ in range(rng.randint(0, most))])


def _parts(rng: random.Random, depth: int, least: int, most: int) -> tuple[Node, ...]:
    return tuple([_part(rng, depth) for _ in range(rng.randint(least, most))])


def _module(rng: random.Random, depth: int) -> Node:
    return Node(
        "module",
        rng.choice(("", "", "statics first", "derived")),
        children=_parts(rng, depth - 1, 0, 3),
        statics=_statics(rng, 4),
    )


def _repeat(rng: random.Random, depth: int) -> Node:
    """A container of few, some or many layers."""
    n = rng.choice((1, 2, 4, 8, 12, 16, 32, 100))
    child = rng.choice((_module, _model))(rng, depth - 1)
    return Node("repeat", rng.choice(("list", "tuple", "dict")), n, (child,))


def _registered(rng: random.Random, depth: int) -> Node:
    kind = rng.choice(
        (
            "registered",
            "registered with keys",
            "registered dataclass",
            "eqx.Partial",
            "jtu.Partial",
        )
    )
    statics = () if kind.endswith("Partial") else _statics(rng, 2)
    return Node(kind, children=_parts(rng, depth - 1, 1, 2), statics=statics)


def _container(rng: random.Random, depth: int) -> Node:
    kind = rng.choice(("tuple", "list", "namedtuple", "dict", "dict", "dict"))
    if kind == "dict":
        kind = rng.choice(("dict", "dict", "OrderedDict", "defaultdict"))
        of = "str" if rng.random() < 0.4 else rng.choice(tuple(KEYS))
        children = _parts(rng, depth - 1, 1, MAX_KEYS)
        return Node(kind, of, children=children)
    if kind == "namedtuple":
        return Node(kind, children=_parts(rng, depth - 1, 2, 2))
    return Node(kind, children=_parts(rng, depth - 1, 1, 4))
