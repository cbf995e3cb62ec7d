"""The lines in loops that block on the device, with the cause and a fix."""

import ast
import linecache
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from eqx_fastjit._place import call_of

from ._causes import severity
from ._report import at, Finding, grouped
from ._sites import shorten
from ._waits import CALL, Waiting
from ._watch import Seen


# Blocking once for the result, or at the end of each epoch, is fine.
_WAITS = 10
# Seconds, share of the time from the first such wait to the last, and share of the
# whole run. Less is noise, or not worth a change. A loop that logs the loss of each
# step, but has no other work to do, stays below.
_WAIT_SECONDS = 0.3
_WAIT_SHARE = 0.1
_WAIT_RUN_SHARE = 0.02


class _Reason(NamedTuple):
    """Why a jitted call blocks by itself."""

    text: str
    fix: str
    leaf: str = ""


def blocking(
    waits: Iterable[Waiting], seen: list[Seen], total: float
) -> Iterator[Finding]:
    """The lines that blocked often and for long, with the cause."""
    for line, group in grouped(waits, lambda w: w.line).items():
        count = max(w.count for w in group)
        lost = sum(w.lost for w in group)
        span = max(w.last for w in group) - min(w.first for w in group)
        least = max(_WAIT_SECONDS, _WAIT_SHARE * span, _WAIT_RUN_SHARE * total)
        if count < _WAITS or lost < least:
            continue
        reason = _reason(max(group, key=lambda w: w.lost), group, seen)
        waited = sum(w.waited for w in group)
        yield Finding(
            kind="blocking",
            severity=severity(lost, total),
            function=line.function,
            **at(line),
            leaf=reason.leaf,
            seconds=lost,
            count=count,
            message=f"{reason.text}. Python was blocked here {count} times, for "
            f"{waited:.2f} s in total; for up to {lost:.2f} s of this, it could have "
            "done other work",
            fix=reason.fix,
        )


def _reason(worst: Waiting, group: list[Waiting], seen: list[Seen]) -> _Reason:
    if worst.what == CALL:
        return _reason_of_call(worst, seen)
    what = ", ".join(sorted({w.what for w in group if w.what != CALL}))
    return _Reason(
        f"{what} needs the value of an array",
        "Do not read results in each step: keep them as arrays, and read them every "
        "few steps, or one step later.",
    )


def _reason_of_call(waiting: Waiting, seen: list[Seen]) -> _Reason:
    name = _called(waiting.expression)
    named = [s for s in seen if s.trace.function.name == name]
    # It may first have been called at another line, or have another name here.
    of = named or [s for s in seen if s.site == waiting.line]
    shown = f"`{name}`" if name else "a jitted function"
    begin = f"Each call of {shown} here blocks until its result is ready, because "
    if any(not s.trace.function.asynchronous for s in of):
        return _Reason(
            f"{begin}calls block as those of Equinox do",
            "If nothing writes to a buffer that was handed to JAX, let calls return "
            "immediately: use `eqx-fastjit run --async`, or `eqx_fastjit.filter_jit` "
            "in place of `eqx.filter_jit`.",
        )
    for s in of:
        if s.inspection is not None and s.inspection.callbacks:
            return _calls_back(begin, s.inspection.callbacks[0])
    for s in of:
        if leaves := _numpy_leaves(s):
            return _reads_numpy(begin, leaves, waiting, s)
    return _Reason(
        f"{begin}it has a host callback, or large NumPy arrays as arguments, or "
        "arguments on several virtual CPU devices",
        "If it has NumPy arrays, pass copies as JAX arrays "
        "(`jnp.asarray(np.array(x))`).",
    )


def _called(expression: str) -> str:
    """The last name of the function that is called."""
    match call_of(expression):
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            return name
    return ""


def _numpy_leaves(s: Seen) -> list[str]:
    """Paths of the arguments that were not on any device."""
    arrays = {} if s.trace.ahead else s.arrays
    return [path for path, facets in arrays.items() if "sharding" not in facets]


def _reads_numpy(begin: str, leaves: list[str], waiting: Waiting, s: Seen) -> _Reason:
    from eqx_fastjit.insight._advice import find_call, root_of

    some = ", ".join(f"`{leaf}`" for leaf in leaves[:3])
    some += f" and {len(leaves) - 3} more" * (len(leaves) > 3)
    is_or_are = "is a NumPy array" if len(leaves) == 1 else "are NumPy arrays"
    function = s.trace.function
    defined = function.place and function.place[:2]
    call = find_call(waiting.line[:2], function.name, defined)
    wraps: dict[str, Any] = {}
    for leaf in leaves:
        root = root_of(leaf)
        text = "jnp.asarray(np.array({}))"
        if root != leaf:
            text = "jax.tree.map(lambda x: jnp.asarray(np.array(x)), {})"
        if call is not None and root in call.arguments:
            wraps[root] = text.format
    # Not `jnp.array(x)`: if the device is busy, JAX copies the buffer later.
    edit = f"Pass copies as JAX arrays (`jnp.asarray(np.array({leaves[0]}))`)"
    if call is not None and wraps:
        edit = f"Write `{call.edited(wraps)}`"
    return _Reason(
        f"{begin}{some} {is_or_are}, whose memory JAX may read until then",
        f"{edit}: nothing else writes to them, and the call returns immediately.",
        leaves[0],
    )


def _calls_back(begin: str, callback: Any) -> _Reason:
    source = linecache.getline(callback.file, callback.line).strip()
    return _Reason(
        f"{begin}a host callback in it may raise (`{source or callback.function}` at "
        f"{shorten(callback.file)}:{callback.line})",
        "Remove the callback from the function that is called in each step, or check "
        "every few steps. With `EQX_ON_ERROR=off` in the environment, "
        "`eqx.error_if` checks nothing.",
    )
