"""Mutants of C source. There is no parser: comments, strings and directives are
blanked.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from ._mutants import Mutant


# Comments, string and character literals, and preprocessor directives.
_NO_CODE = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'
    | ^[ \t]*\#(?:\\\n|[^\n])*""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
# For each operator: a pattern, and its replacement.
_OPERATORS: dict[str, tuple[str, str]] = {
    "equal": (r"==", "!="),
    "not equal": (r"!=", "=="),
    "less": (r"(?<= )<(?= )", "<="),
    "less or equal": (r"<=", "<"),
    "greater": (r"(?<= )>(?= )", ">="),
    "greater or equal": (r">=", ">"),
    "and": (r"&&", "||"),
    "or": (r"\|\|", "&&"),
    "not": (r"!(?=[\w(])", ""),
    "plus": (r"(?<= )\+(?= )", "-"),
    "minus": (r"(?<= )-(?= )", "+"),
    "increment": (r"\+\+", "--"),
    "zero": (r"(?<![\w.])0(?![\w.])", "1"),
    "one": (r"(?<![\w.])1(?![\w.])", "2"),
    "minus one": (r"(?<=return )-1(?=;)", "0"),
    "no reference taken": (r"\bPy_X?INCREF\(\w+\);", ";"),
    "reference kept": (r"\bPy_X?DECREF\(\w+\);", ";"),
    "goes on": (r"\bbreak;", ";"),
}


def _code(source: str) -> str:
    """The source with blanks in place of all but code; its length is unchanged."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    return _NO_CODE.sub(blank, source)


def c_mutants(file: Path, source: str) -> Iterator[Mutant]:
    """One mutant for each match of each operator."""
    code = _code(source)
    for name, (pattern, _) in _OPERATORS.items():
        for occurrence, match in enumerate(re.finditer(pattern, code)):
            start = match.start()
            line = code.count("\n", 0, start) + 1
            column = start - (code.rfind("\n", 0, start) + 1)
            yield Mutant(file, line, column, name, occurrence)


def mutate_c(source: str, mutant: Mutant) -> str:
    """The source with the mutation applied."""
    pattern, new = _OPERATORS[mutant.operator]
    for occurrence, match in enumerate(re.finditer(pattern, _code(source))):
        if occurrence == mutant.occurrence:
            return source[: match.start()] + new + source[match.end() :]
    raise AssertionError(mutant)
