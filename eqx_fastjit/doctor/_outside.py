"""What was compiled outside of any jitted function, and took long."""

import ast
import collections
from collections.abc import Iterator

from eqx_fastjit._units import show_seconds

from ._causes import severity
from ._plain import Compile
from ._report import Finding
from ._sites import Line


# Seconds that one compilation took. A hundred small operations, as they are run when a
# model is made, take some milliseconds each and are no fault; a loop or a solver that
# is run operation by operation takes seconds.
LONG = 1.0
# Of the run.
_SHARE = 0.05


def outside_of_jit(plain: list[Compile], total: float) -> Iterator[Finding]:
    """Lines whose operations took seconds to compile, one by one."""
    groups: dict[Line, list[Compile]] = collections.defaultdict(list)
    for c in plain:
        if c.miss is None and c.site is not None and c.seconds >= LONG:
            groups[c.site].append(c)
    for line, group in groups.items():
        seconds = sum(c.seconds for c in group)
        if seconds < _SHARE * total:
            continue
        names = ", ".join(f"`{name}`" for name in dict.fromkeys(c.name for c in group))
        longest = max(c.seconds for c in group)
        yield Finding(
            kind="outside-jit",
            severity=severity(seconds, total),
            function=line.function,
            file=line.file,
            line=line.line,
            leaf="",
            seconds=seconds,
            count=len(group),
            message=f"{names} was compiled outside of any jitted function, for "
            f"{show_seconds(seconds)} altogether, at most {show_seconds(longest)} at a "
            "time. Here each operation is a program of its own, and each call of "
            "`jax.vmap(f)`, `jax.grad(f)` or `jax.lax.scan(f, ...)` runs `f` in Python",
            fix=_fix(max(group, key=lambda c: c.seconds).expression, line.function),
        )


def _fix(expression: str, inside: str) -> str:
    why = "Made once, and called as often as needed, it is compiled as a whole, once."
    try:
        node = ast.parse(expression, mode="eval").body
    except SyntaxError:
        node = None
    function = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    # Of JAX's own functions the arguments are functions, which are made anew each time.
    if not isinstance(node, ast.Call) or function.startswith(("jax.lax.", "lax.")):
        name = "a function" if inside.startswith("<") else f"`{inside}`"
        return f"Call it in {name} under `eqx.filter_jit`. {why}"
    node.func = ast.parse(f"eqx.filter_jit({function})", mode="eval").body
    whole = ast.unparse(node)
    if len(whole) > 88:
        whole = f"eqx.filter_jit({function})(...)"
    return f"Write `{whole}`. {why}"
