"""The tree of a sampling profile, with estimated parts for the time in C++."""

import dataclasses
import os
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from eqx_fastjit._units import show_seconds
from eqx_fastjit.doctor._sites import is_library, shorten

from ._warm_call import Part


# Less of a whole call is left out.
_LEAST = 0.005
# Functions whose own time is spent in compiled code: the call itself.
_CALL_COMPILED = (
    ("_profile.py", "run_calls"),
    ("_function.py", "call"),
    ("_jit.py", "_call"),
)
# What Equinox and JAX spend a call on, by the names of the file and of the function. A
# function that has gone only moves time to "other Python" in a profile.
CALL_FRAMES = {
    ("_jit.py", "_bind"): "bind",
    ("_jit.py", "_preprocess"): "partition",
    ("_jit.py", "_postprocess"): "unflatten",
    ("_compile_utils.py", "hashable_partition"): "partition",
    ("_compile_utils.py", "hashable_combine"): "unflatten",
    ("_filters.py", "combine"): "unflatten",
    ("_misc.py", "currently_jitting"): "state check",
    ("tree_util.py", "tree_flatten"): "flatten",
    ("tree_util.py", "tree_leaves"): "flatten",
    ("tree_util.py", "tree_unflatten"): "unflatten",
    ("pjit.py", "cache_miss"): "execute",
    ("pxla.py", "__call__"): "execute",
    ("array.py", "block_until_ready"): "wait",
}
# What of a call may happen in compiled code, whoever makes it.
_COMPILED = ("bind", "flatten", "transfer", "lookup", "execute", "unflatten", "wait")


@dataclasses.dataclass(frozen=True)
class Node:
    """A function of the profile, or a part of what compiled code does."""

    name: str
    # Where it is from, for people.
    place: str
    # A call, in seconds: with those that it calls, and without.
    seconds: float
    own: float
    # "yours", "library" or "compiled".
    kind: str
    children: tuple["Node", ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether to show what is in it: code of the user, or compiled code."""
        return any(x.kind != "library" or x.is_open for x in self.children)

    def walk(self) -> Iterator["Node"]:
        """This one and all below."""
        yield self
        for child in self.children:
            yield from child.walk()


def make_tree(root: Any, n: int, parts: Sequence[Part]) -> Node:
    """The tree of `n` calls, from pyinstrument's root frame.

    What was measured of a call, in `parts`, divides the time in compiled code.
    """
    calls = ("_profile.py", "run_calls")
    top = next((frame for frame in _frames(root) if _names(frame) == calls), root)
    seen = {CALL_FRAMES.get(_names(frame)) for frame in _frames(top)}
    inside = [p for p in parts if p.name in _COMPILED and p.name not in seen]
    return _node(top, n, _LEAST * top.time, inside)


def _frames(root: Any) -> Iterator[Any]:
    pending = [root]
    while pending:
        frame = pending.pop()
        yield frame
        pending.extend(reversed(frame.children))


def _node(frame: Any, n: int, least: float, parts: Sequence[Part]) -> Node:
    file, name = _names(frame)
    # Pyinstrument makes a frame of the own time of one that has others in it.
    inner = [c for c in frame.children if c.function != "[self]"]
    own = frame.time - sum(c.time for c in inner)
    children = [_node(c, n, least, parts) for c in inner if c.time >= least]
    compiled = (file, name) in _CALL_COMPILED and own >= least
    if compiled:
        children += _split(own / n, parts)
        own = 0.0
    if name == "run_calls":
        name, place = "the calls", ""
    else:
        place = shorten(frame.file_path or "")
        stage = CALL_FRAMES.get((file, name))
        name = f"{name} ({stage})" if stage else name
    path = frame.file_path or "<"  # or <built-in>, <generated_flatten>
    kind = "library" if path.startswith("<") or is_library(path) else "yours"
    children.sort(key=lambda x: -x.seconds)
    return Node(name, place, frame.time / n, own / n, kind, tuple(children))


def _split(seconds: float, parts: Sequence[Part]) -> list[Node]:
    """Time in compiled code, as the parts that were measured share it."""
    total = sum(p.seconds for p in parts)
    if not total:
        return [Node("compiled code", "", seconds, seconds, "compiled")]
    inside = tuple(
        Node(p.name, p.what, share, share, "compiled")
        for p in parts
        if (share := seconds * p.seconds / total) > 1e-9
    )
    return [Node("compiled code", "divided as timed", seconds, 0, "compiled", inside)]


def _names(frame: Any) -> tuple[str, str]:
    """The last part of a frame's file, and its function without the class."""
    file = os.path.basename((frame.file_path or "").partition(":")[0])
    return file, (frame.function or "").rpartition(".")[2]


def tree_text(root: Node) -> str:
    """The tree, indented. What only libraries do is one line each."""
    lines: list[str] = []

    def show(node: Node, depth: int) -> None:
        share = f"{node.seconds / (root.seconds or 1):>4.0%}"
        place = f"  {node.place}" if node.place else ""
        folded = sum(1 for _ in node.walk()) - 1
        is_open = node.is_open or node is root
        more = "" if is_open or not folded else f"  [{folded} folded]"
        line = f"{share} {show_seconds(node.seconds):>10}  {'  ' * depth}{node.name}"
        lines.append(f"{line}{place}{more}")
        if is_open:
            for child in node.children:
                show(child, depth + 1)

    show(root, 0)
    return "\n".join(lines)


STYLE = """
.tree { font: .85rem/1.6 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
.tree details > :not(summary) { margin-left: 1.2rem;
  border-left: 1px solid var(--line); padding-left: .3rem; }
.tree summary { cursor: pointer; }
.tree summary, .tree .row { white-space: nowrap; }
.tree .leaf { padding-left: 1rem; }
.tree .row > i { font-style: normal; display: inline-block; text-align: right; }
.tree .share { width: 3.2rem; } .tree .time { width: 5.5rem; margin-right: 1rem; }
.tree .dim { color: var(--dim); margin-left: 1rem; }
.tree .yours b { color: var(--link); } .tree .compiled b { color: #2e7d4f; }
.tree .library b { font-weight: 400; }
@media (prefers-color-scheme: dark) { .tree .compiled b { color: #7fd0a0; } }
"""


def tree_html(root: Node) -> str:
    """The tree as nested `details`: what only libraries do is folded."""
    return f'<div class="scroll tree">{_html(root, root)}</div>'


def _html(node: Node, root: Node) -> str:
    share = node.seconds / (root.seconds or 1)
    row = (
        f'<span class="row {node.kind}"><i class="share">{share:.0%}</i>'
        f'<i class="time">{show_seconds(node.seconds)}</i><b>{escape(node.name)}</b>'
        f'<span class="dim">{escape(node.place)}</span></span>'
    )
    if not node.children:
        return f'<div class="leaf">{row}</div>'
    is_open = " open" if node.is_open or node is root else ""
    inside = "".join(_html(child, root) for child in node.children)
    return f"<details{is_open}><summary>{row}</summary>{inside}</details>"
