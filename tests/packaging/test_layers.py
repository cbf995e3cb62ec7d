"""The package's imports: arrows go down only, without a circle.

Promise of CONTRIBUTING.md, "Where things are".
"""

import ast
from pathlib import Path

import pytest


PACKAGE = Path(__file__).parents[2] / "eqx_fastjit"

# From the bottom up. A file may import those of lower layers, and those before it in
# its own. A folder is one name here.
LAYERS = [
    ["_fallback", "_private", "_facts"],
    ["_statics", "_errors", "_blocking", "_texts"],
    ["_result", "_reference", "_engine"],
    ["_options", "_traced", "_callables", "_function"],
    ["_stages", "_export"],
    ["_jit", "_install"],
    ["insight"],
    ["__init__", "cli", "__main__", "pytest_plugin"],
]
ORDER = {name: i for i, name in enumerate(x for layer in LAYERS for x in layer)}
# The rooms of `insight`, in the order in which data flow: a file imports its own room
# and rooms before it. Words are below all, and the entries above.
ROOMS = ["_words", "record", "compare", "rules", "show"]


def imports(file):
    """The modules of the package that a file names in any import, as parts."""
    here = file.relative_to(PACKAGE.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(here[: -node.level]) if node.level else []
            base += node.module.split(".") if node.module else []
            found = [[*base, alias.name] for alias in node.names]
        else:
            continue
        yield from (parts[1:] for parts in found if parts[0] == PACKAGE.name)


def is_module(parts):
    path = PACKAGE.joinpath(*parts)
    return path.with_suffix(".py").exists() or path.is_dir()


FILES = sorted(PACKAGE.rglob("*.py"))


def names(file):
    return file.relative_to(PACKAGE).with_suffix("").parts


@pytest.mark.parametrize("file", FILES, ids=lambda x: "/".join(names(x)))
def test_imports_go_down(file):
    """Also those in functions, and those for types alone."""
    room = names(file)[0]
    used = {parts[0] for parts in imports(file) if parts and is_module(parts[:1])}
    if room != "__init__":  # which loads the public names on first use
        assert not [x for x in used - {room} if ORDER[x] > ORDER[room]]


INSIGHT = [x for x in FILES if names(x)[0] == "insight"]


def order_in_insight(name):
    """Of a room, or of an entry."""
    return ROOMS.index(name) if name in ROOMS else len(ROOMS)


@pytest.mark.parametrize("file", INSIGHT, ids=lambda x: "/".join(names(x)[1:]))
def test_data_flow_one_way(file):
    """A file of `insight` imports its own room, and rooms before it."""
    own = order_in_insight(names(file)[1])
    used = {parts[1] for parts in imports(file) if parts[:1] == ["insight"]}
    assert not [x for x in used if order_in_insight(x) > own]


FOLDERS = ["_export", "cli", "insight", *(f"insight/{x}" for x in ROOMS[1:])]


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_has_no_circle(folder):
    """Each file can be put below all that import it."""
    room = folder.split("/")
    left = {
        file.stem: {p[len(room)] for p in imports(file) if is_below(p, room)}
        for file in (PACKAGE / folder).glob("*.py")
        if file.stem != "__init__"
    }
    while left:
        free = [x for x, used in left.items() if not used & left.keys()]
        assert free, f"a circle in {left}"
        left = {x: used for x, used in left.items() if x not in free}


def is_below(parts, room):
    """Whether what is imported is in a folder."""
    return parts[: len(room)] == room and len(parts) > len(room)
