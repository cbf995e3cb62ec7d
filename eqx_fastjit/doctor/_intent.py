"""Whether a program intends to call a function with several dtypes.

To compare precisions is no fault; that one batch has another dtype, or that a result
has when it comes back as an argument, is. Both compile a function once more, so what
tells them apart is where the calls are: their lines, and the loops around them.
"""

import ast
import collections
import functools as ft
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ._sites import Line


if TYPE_CHECKING:
    from eqx_fastjit.insight._differences import Difference

    from ._watch import Seen

# Another dtype than before, ...
MEANT = "meant"  # ... as the loop around the call goes through several
ELSEWHERE = "elsewhere"  # ... in a call from elsewhere, or of another array
FED_BACK = "fed back"  # ... as the function itself has returned it
DATA = "data"  # ... of some data, in the same loop, while all else is as it was
UNKNOWN = ""

# Another shape or structure: of what the loop begins with anew, such as another model,
# and then trains. Or else `FED_BACK`, or `ELSEWHERE`.
BEGUN = "begun"

# For example, `x` and `y` of a batch, and its weights.
_MAX_LEAVES = 3
# Frames in which a statement may give a result back to the call.
_MAX_FRAMES = 3

# Texts that show that a dtype is chosen: in code, ...
_DTYPE = re.compile(
    r"dtype|astype|precision|quanti|bits\b"
    r"|(?:float|fp|bf|int|complex|x|f)(?:8|16|32|64|128)\b",
    re.IGNORECASE,
)
# ... and as the name of a choice.
_WORD = re.compile(
    r"(?<![a-z])(?:half|single|double|full|mixed|cast|low|high)(?![a-z])",
    re.IGNORECASE,
)
_WIDTHS = {8, 16, 32, 64, 128}

_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def intent(old: "Seen", new: "Seen", differing: "list[Difference]") -> str:
    """Why a call has another dtype than an earlier one, as one of the texts above.

    A dtype is the main one of all that differs between the two traces.
    """
    changed = [d for d in differing if d.what == "dtype"]
    if any("key<" in d.old + d.new for d in changed):
        return UNKNOWN  # nobody compares kinds of keys
    if _is_fed_back(old, new, changed[0]):
        return FED_BACK
    if any(_compares(line) for line in new.stack):
        return MEANT
    reshaped = {d.path for d in differing if d.what == "shape"}
    if old.stack != new.stack or changed[0].path in reshaped:
        return ELSEWHERE
    return DATA if _is_data(new, changed) else UNKNOWN


def carry(old: "Seen", new: "Seen", differing: "list[Difference]") -> str:
    """Whether a number was passed at first, and then the array that came back."""
    from eqx_fastjit.insight._edits import becomes_array

    became = [
        d._replace(new=_facets(new, d.path).get("dtype", ""))
        for d in differing
        if d.what == "static" and becomes_array(d)
    ]
    return FED_BACK if any(_is_fed_back(old, new, d) for d in became) else UNKNOWN


def plain_intent(old: tuple[Line, ...] | None, new: tuple[Line, ...]) -> str:
    """The same for a plain `jax.jit`, of which less is known."""
    if any(map(_compares, new)):
        return MEANT
    return ELSEWHERE if old is not None and old != new else UNKNOWN


def beginning(old: "Seen", new: "Seen", differing: "list[Difference]") -> str:
    """Whether a loop begins with something of another shape or structure.

    Models of several widths are compared on purpose. A buffer that grows is fed back,
    and batches come with every call.
    """
    from eqx_fastjit.insight._advice import root_of

    changed = {
        root_of(d.path): d.path
        for d in differing
        if d.what in ("shape", "structure", "static")
    }
    if not changed or not all(_is_carried(new, path) for path in changed.values()):
        return ELSEWHERE
    if not old.results:
        return UNKNOWN  # the trace was not inspected
    passed = collections.Counter(
        (facets["dtype"], facets["shape"])
        for path, facets in new.arrays.items()
        if root_of(path) in changed
    )
    return FED_BACK if passed <= collections.Counter(old.results) else BEGUN


# --- what the function has returned --------------------------------------------------


def _is_fed_back(old: "Seen", new: "Seen", changed: "Difference") -> bool:
    """Whether the function has returned an array like the one that is passed now."""
    result = (changed.new, _facets(new, changed.path).get("shape", ""))
    return result in old.results and any(
        _is_carried(seen, changed.path) for seen in (new, old)
    )


def _is_carried(seen: "Seen", leaf: str) -> bool:
    """Whether the call's statement gives back what it passes for a leaf."""
    return any(
        # Not if the loop itself provides a new one in each iteration.
        not any(names & _targets(loop) for loop in _loops_around(line))
        for line in seen.stack[:_MAX_FRAMES]
        if (names := _carried(seen, line, leaf))
    )


def _carried(seen: "Seen", line: Line, leaf: str) -> set[str]:
    """The variables that a statement both passes and assigns to, such as `x = f(x)`."""
    from eqx_fastjit.insight._advice import find_call, find_nodes, root_of

    targets: set[str] = set()
    passed: set[str] = set()
    for node in find_nodes(line.file, (ast.Assign, ast.AnnAssign), line.line):
        if node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            targets |= {ast.unparse(x) for x in _parts(target)}
        for call in ast.walk(node.value):
            if isinstance(call, ast.Call):
                values = [*call.args, *[k.value for k in call.keywords]]
                passed |= {ast.unparse(x) for x in values}
    function = seen.trace.function
    defined = function.place and function.place[:2]
    call = find_call(line[:2], function.name, defined)
    argument = None if call is None else call.argument(root_of(leaf))
    if argument is not None:
        passed = {argument}
    return targets & passed


def _parts(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for element in target.elts:
            yield from _parts(element)
    else:
        yield target.value if isinstance(target, ast.Starred) else target


def _facets(seen: "Seen", path: str) -> dict[str, str]:
    return dict(next((e.facets for e in seen.trace.entries if e.path == path), ()))


# --- what the program goes through ---------------------------------------------------


def _is_data(new: "Seen", changed: "list[Difference]") -> bool:
    """Whether the data in a loop changed its dtype, and the model did not."""
    from eqx_fastjit.insight._advice import root_of

    root, *more = {root_of(d.path) for d in changed}
    if more or len(changed) > _MAX_LEAVES:
        return False
    if "." in _facets(new, root).get("type", ""):
        return False  # a Module: another model
    if any(_carried(new, line, root) for line in new.stack[:_MAX_FRAMES]):
        return False  # is trained in the loop: another beginning
    paths = {d.path for d in changed}
    others = [x["dtype"] for path, x in new.arrays.items() if path not in paths]
    has_model = any("float" in dtype or "complex" in dtype for dtype in others)
    return has_model and any(map(_loops_around, new.stack))


# A report may have hundreds of causes at one line.
@ft.lru_cache(maxsize=256)
def _loops_around(line: Line) -> tuple[ast.AST, ...]:
    """The loops, comprehensions included, that have a line in their body."""
    from eqx_fastjit.insight._advice import find_nodes

    return tuple(
        node
        for node in find_nodes(line.file, (*_LOOPS, *_COMPREHENSIONS), line.line)
        if not isinstance(node, _LOOPS)
        or node.body[0].lineno <= line.line <= (node.body[-1].end_lineno or 0)
    )


def _iterations(loop: ast.AST) -> list[ast.For | ast.AsyncFor | ast.comprehension]:
    """What has a `target` and an `iter`: the loop, or parts of a comprehension."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        return [loop]
    return [*loop.generators] if isinstance(loop, _COMPREHENSIONS) else []


def _targets(loop: ast.AST) -> set[str]:
    """The variables of a `for`."""
    return {ast.unparse(x) for it in _iterations(loop) for x in _parts(it.target)}


@ft.lru_cache(maxsize=256)
def _compares(line: Line) -> bool:
    """Whether a loop around a line iterates over dtypes, or things that have one."""
    return any(_chooses(line, loop) for loop in _loops_around(line))


def _chooses(line: Line, loop: ast.AST) -> bool:
    if any(map(_names_choice, _targets(loop))):
        return True
    if any(_is_choice(line, it.iter) for it in _iterations(loop)):
        return True
    # `x.astype(...) if ... else x`, in each iteration.
    branches: list[ast.AST] = []
    for node in ast.walk(loop):
        if isinstance(node, ast.IfExp):
            branches.append(node)
        elif isinstance(node, ast.If):
            branches += [n for n in ast.walk(node) if isinstance(n, ast.Assign)]
    return any(_DTYPE.search(ast.unparse(node)) for node in branches)


def _names_choice(text: str) -> bool:
    return bool(_DTYPE.search(text) or _WORD.search(text))


def _is_choice(line: Line, source: ast.expr) -> bool:
    """Whether what is iterated over is written out, and not as mere numbers or names.

    Or has the name of a variable that is.
    """
    for node in ast.walk(source):
        if isinstance(node, ast.Name):
            node = _value_of(line, node.id)
        elements: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            elements = [*filter(None, node.keys), *node.values]
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            elements = node.elts
        elif isinstance(node, _COMPREHENSIONS) and any(
            _is_choice(line, g.iter) for g in node.generators
        ):
            return True
        if any(map(_is_option, elements)):
            return True
    return False


def _value_of(line: Line, name: str) -> ast.expr | None:
    """What a variable is assigned to, in its function or its module."""
    from eqx_fastjit.insight._advice import find_assignment, find_nodes

    found = find_assignment(line[:2], name)
    for node in [found] if found else find_nodes(line.file, ast.Assign):
        if [t.id for t in node.targets if isinstance(t, ast.Name)] == [name]:
            return node.value
    return None


def _is_option(element: ast.expr) -> bool:
    """Whether a literal may decide about a dtype."""
    if isinstance(element, ast.Constant):
        value = element.value
        if isinstance(value, str):
            return _names_choice(value)
        return isinstance(value, bool) or value in _WIDTHS
    if isinstance(element, ast.Tuple | ast.List):
        return any(map(_is_option, element.elts))
    return not isinstance(element, ast.UnaryOp)  # -1
