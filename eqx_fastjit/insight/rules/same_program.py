"""The same program again: rules of what differs between calls of one program."""

from eqx_fastjit.insight.compare._objects import is_float, module_of, Object
from eqx_fastjit.insight.record._leaves import is_below

from ._rules import Rule


def _is_in_static(found: Object) -> bool:
    """Whether it is a field of a static object."""
    last = found.leaves[-1]
    return last is not None and bool(last.of)


def _is_configuration(found: Object) -> bool:
    return found.kind == "number" and _is_in_static(found)


def _is_static_for_jit(found: Object) -> bool:
    """Whether it is a number that plain `jax.jit` was told to take as static."""
    return found.kind == "number" and found.table.rows[-1].event.is_outside


def _is_number_of_module(found: Object) -> bool:
    """Whether it would be a parameter of a model if it were an array in it."""
    module = module_of(found.table, found.paths[0])
    if found.kind != "number" or not (module and any(map(is_float, found.leaves))):
        return False

    return any(
        leaf.kind == "array" and is_below(path, module) and leaf.dtype.startswith("f")
        for path, leaf in found.table.rows[-1].leaves.items()
    )


def _is_chosen(found: Object) -> bool:
    """Whether it is one of several values, or functions, that select something."""
    places = {x.place for x in found.leaves if x is not None}
    is_one_of_several = found.kind == "callable" and len(places) > 1
    return found.selects and (found.kind == "label" or is_one_of_several)


DECIDES = Rule(
    "decides",
    "pass what it decides, such as a flag, and a number as an array of its own",
    "{differs}, for {programs} programs",
)
# JAX compiles again what is the same in everything.
DROPPED = Rule(
    "dropped", "do not clear JAX's caches in between", "the same calls again"
)

RULES = (
    Rule(
        "configuration",
        "one {owner} for all calls; {array} as an argument, if it is used",
        applies=_is_configuration,
    ),
    Rule(
        "static-argnames",
        "take it out of static_argnames",
        applies=_is_static_for_jit,
    ),
    Rule(
        "module-number",
        "an argument of its own, if it is used: {array}",
        applies=_is_number_of_module,
    ),
    Rule("number", "{array}", applies=lambda x: x.kind == "number"),
    DECIDES,
    Rule("selects", "pass what it selects, as an array", applies=_is_chosen),
    Rule("label", "keep it out of the call", applies=lambda x: x.kind == "label"),
    Rule(
        "object",
        "make it once{passed}",
        "{path}{which} made again{cells}",
        applies=lambda x: x.kind == "object",
    ),
    Rule(
        "function",
        "make it once{passed}",
        "{path} made again{cells}",
        applies=lambda x: x.kind in ("function", "callable"),
    ),
    Rule(
        "optimiser",
        "make it once; {rates}",
        "{path} made again",
        applies=lambda x: x.kind == "optimiser",
    ),
    Rule(
        "static-field",
        "drop static=True",
        "array {path} in a static field",
        applies=lambda x: x.kind == "array" and not _is_in_static(x),
    ),
    Rule(
        "array-in-static",
        "make {owner} an eqx.Module",
        "array {path} in a static {owner}",
        applies=lambda x: x.kind == "array",
    ),
    Rule("structure", "pass one structure", applies=lambda x: x.kind == "structure"),
    Rule(
        "placement",
        "jax.device_put({path}, sharding) before the first call",
        applies=lambda x: x.kind == "placement",
    ),
    Rule("setting", "set it once", applies=lambda x: x.kind == "setting"),
    DROPPED,
)
