"""Operations outside of jit that were compiled many times."""

import ast
from collections.abc import Iterator

from eqx_fastjit._place import call_of
from eqx_fastjit._units import show_seconds

from ._causes import severity
from ._plain import Compile
from ._report import at, Finding, grouped
from ._sites import Line


# Loops and branches, which take functions. If a nested function is passed, it is a new
# function in each call, so each call compiles again.
_OF_FUNCTIONS = {"scan", "while", "cond", "custom_linear_solve", "checkpoint"}
# How often one line has to compile the same one.
_COMPILES = 3
# Other operations compile for each shape. Creating a model and the state of its
# optimiser takes some, which is no fault.
_OTHER_COMPILES = 12
# Seconds in total, of the former and of others, and their share of the run.
_SECONDS = 0.5
_OTHER_SECONDS = 1.0
_SHARE = 0.05
_SHAPES = (
    "Jitted alone, it would be compiled for each shape as well. Keep the shape: "
    "collect values in a list and `jnp.stack` them once, or write to an array that has "
    "its full size from the start. If these are layers of a model, create it in a "
    "function under `eqx.filter_jit`."
)


def outside_of_jit(
    plain: list[Compile], total: float, share: float = 1.0
) -> Iterator[Finding]:
    """Lines that repeatedly compile an operation.

    The program ran for `total` seconds, and had a processor for that share of them.
    """
    eager = [c for c in plain if c.miss is None and c.site is not None]
    for (line, name), group in grouped(eager, lambda c: (c.site, c.name)).items():
        seconds = sum(c.seconds for c in group)
        takes_functions = name in _OF_FUNCTIONS
        enough, least, why = _OTHER_COMPILES, _OTHER_SECONDS, "for each shape"
        if takes_functions:
            enough, least, why = _COMPILES, _SECONDS, "for a new function each time"
        if len(group) < enough or seconds < max(least / share, _SHARE * total):
            continue
        yield Finding(
            kind="outside-jit",
            severity=severity(seconds, total),
            function=line.function,
            **at(line),
            leaf=name,
            seconds=seconds,
            count=len(group),
            message=f"`{name}` was compiled {len(group)} times outside of any jitted "
            f"function, {why}; {show_seconds(seconds)} in total",
            fix=_fix(group[0].expression, line.function, _made_in_function(line))
            if takes_functions
            else _SHAPES,
        )


def _fix(expression: str, inside: str, made: frozenset[str] = frozenset()) -> str:
    why = "Create it once and call it as often as needed: it compiles as one program."
    call = call_of(expression)
    function = "" if call is None else ast.unparse(call.func)
    # JAX's own functions take functions, which are new in each call.
    if call is None or function.startswith(("jax.lax.", "lax.")):
        name = "a function" if inside.startswith("<") else f"`{inside}`"
        return f"Call it in {name} under `eqx.filter_jit`. {why}"
    if new := _names(call.func) & made:
        return (
            f"Decorate `{inside.rpartition('.')[2]}` with `@eqx.filter_jit`: it "
            f"compiles as one program. (`{min(new)}` is a new function in each call, "
            "and would be compiled again each time.)"
        )
    call.func = ast.parse(f"eqx.filter_jit({function})", mode="eval").body
    whole = ast.unparse(call)
    if len(whole) > 88:
        whole = f"eqx.filter_jit({function})(...)"
    return f"Write `{whole}`. {why}"


def _names(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def _made_in_function(line: Line) -> frozenset[str]:
    """The functions that the function around a line defines each time it is called."""
    from eqx_fastjit.insight._advice import find_nodes

    around = list(find_nodes(line.file, ast.FunctionDef, line.line))
    if not around:
        return frozenset()
    inside = (n for n in ast.walk(around[-1]) if isinstance(n, ast.FunctionDef))
    return frozenset(n.name for n in inside) - {around[-1].name}
