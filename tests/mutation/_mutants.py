"""Mutants of a Python file, and a random sample from several files."""

import ast
import collections
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    """A single mutation at one position."""

    file: Path
    # The line counts from 1, the column from 0.
    line: int
    column: int
    # The kind of mutation.
    operator: str
    # The index of this position among those of the same operator in the file.
    occurrence: int

    def place(self) -> tuple[Path, int, int]:
        """Its position."""
        return self.file, self.line, self.column


def changed_lines(before: str, after: str) -> tuple[str, str]:
    """The lines that differ between a source and its mutant, without indentation."""
    olds, news = before.splitlines(), after.splitlines()
    while olds and news and olds[0] == news[0]:
        del olds[0], news[0]
    while olds and news and olds[-1] == news[-1]:
        del olds[-1], news[-1]
    old, new = ("\n".join(line.strip() for line in lines) for lines in (olds, news))
    return old, new


# --- Python --------------------------------------------------------------------------


def python_mutants(file: Path, source: str) -> Iterator[Mutant]:
    """All mutations of cosmic-ray, except in annotations, which never run.

    **Arguments:**

    - `file`: stored in the mutants.
    - `source`: the content of the file.
    """
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    left_out = annotations(source)
    for name in operator_names():
        operator: Any = get_operator(name)
        if operator.arguments():
            continue  # an operator that needs arguments
        positions = (
            start for node in nodes for start, _ in operator().mutation_positions(node)
        )
        for occurrence, (line, column) in enumerate(positions):
            mutant = Mutant(file, line, column, name, occurrence)
            if any(start <= (line, column) < end for start, end in left_out):
                continue
            if name != "core/ExceptionReplacer" or _can_be_applied(source, mutant):
                yield mutant


def mutate_python(source: str, mutant: Mutant) -> str:
    """The source with the mutation applied."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    operator: Any = get_operator(mutant.operator)
    out = mutate_code(source, operator(), mutant.occurrence)
    assert out is not None, mutant
    return out


def _can_be_applied(source: str, mutant: Mutant) -> bool:
    """False for `module.Error` in a tuple, which cosmic-ray fails to replace."""
    try:
        mutate_python(source, mutant)
    except AttributeError:
        return False
    return True


_Span = tuple[tuple[int, int], tuple[int, int]]


def annotations(source: str) -> list[_Span]:
    """Start and end, as line and column, of code that only a type checker reads."""
    found: list[ast.AST | None] = []
    overloads: list[ast.expr] = []
    checked: list[_Span] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(node.returns)
            overloads += [x for x in node.decorator_list if _name(x) == "overload"]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            found.append(node.annotation)
        elif isinstance(node, ast.If) and _name(node.test) == "TYPE_CHECKING":
            # From the test on, since decorators come before what they decorate.
            checked.append((_span(node.test)[0], _span(node.body[-1])[1]))
    spans = [_span(x) for x in found if isinstance(x, ast.expr | ast.stmt)]
    # Including the `@`.
    begins = [((x.lineno, x.col_offset - 1), _span(x)[1]) for x in overloads]
    return spans + begins + checked


def _span(x: ast.expr | ast.stmt) -> _Span:
    return (x.lineno, x.col_offset), (x.end_lineno or 0, x.end_col_offset or 0)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


# --- sampling ------------------------------------------------------------------------


def in_seeded_order(mutants: list[Mutant], seed: int) -> list[Mutant]:
    """One mutant for each position, in an order that depends only on the seed.

    A position with `+` has eleven mutants, one for each other operator, and would
    otherwise count as much as eleven comparisons.
    """
    numbers = random.Random(seed)
    by_place: dict[Any, list[Mutant]] = collections.defaultdict(list)
    for mutant in sorted(mutants):
        by_place[mutant.place()].append(mutant)
    chosen = [numbers.choice(group) for group in by_place.values()]
    numbers.shuffle(chosen)
    return chosen
