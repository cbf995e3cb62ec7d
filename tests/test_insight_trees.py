"""The call trees and tables of hand-made profiles."""

import types

import pytest

from eqx_fastjit.insight import _profile, _profile_tree, Part, WarmCall
from eqx_fastjit.insight._profile_tree import make_tree, Node, tree_html, tree_text


pytestmark = pytest.mark.one_engine


def leaf(name, own, kind="library", place="lib.py"):
    return Node(name, place, own, own, kind)


MINE = Node("mine", "a.py", 1.0, 0.2, "yours", (leaf("np", 0.8),))
LIB = Node("<lib>", "b.py", 0.5, 0.1, "library", (leaf("x", 0.4, place=""),))
TREE = Node("the calls", "", 2.0, 0.5, "library", (MINE, LIB))


def test_a_tree_as_text_and_html():
    assert tree_text(TREE).splitlines() == [
        "100%        2 s  the calls",
        " 50%        1 s    mine  a.py  [1 folded]",
        " 25%     500 ms    <lib>  b.py  [1 folded]",
    ]
    outer = Node("out", "", 0.0, 0.0, "library", (leaf("c", 0.0, "compiled", ""),))
    assert tree_text(outer).splitlines() == [
        "  0%       0 us  out",
        "  0%       0 us    c",
    ]
    opened = Node("top", "", 4.0, 0.0, "library", (TREE,))
    assert tree_text(opened).splitlines()[1:3] == [
        " 50%        2 s    the calls",
        " 25%        1 s      mine  a.py  [1 folded]",
    ]
    html = tree_html(TREE)
    assert html.count("<details open>") == 1 and html.count("<details>") == 2
    assert html.count('<div class="leaf">') == 2
    assert html.count("</details>") == html.count("<summary>") == 3
    assert (
        '<span class="row library"><i class="share">25%</i><i class="time">500 ms</i>'
        '<b>&lt;lib&gt;</b><span class="dim">b.py</span></span>'
    ) in html


def frame(file, function, own, *children):
    time = own + sum(c.time for c in children)
    return types.SimpleNamespace(
        file_path=file, function=function, time=time, children=children
    )


def test_what_is_left_out_of_a_tree():
    rare, often = frame("/me/a.py", "rare", 0.49), frame("/me/a.py", "often", 0.5)
    own = frame("/me/a.py", "[self]", 5.0)
    call = frame("/x/_function.py", "Function.call", 0.4, own, rare)
    built = frame("<generated>", "g", 4.0)
    nameless = frame(None, None, 3.0)
    calls = (often, call, built, nameless, rare)
    rest = 100.0 - sum(c.time for c in calls)
    top = frame("/x/_profile.py", "run_calls", rest, *calls)
    tree = make_tree(
        frame("/me/m.py", "main", 50.0, top), 10, [Part("bind", 1.0, True)]
    )
    assert (tree.name, tree.place, tree.seconds, tree.own) == ("the calls", "", 10.0, 0)
    names = [(x.name, x.kind, round(x.seconds, 9)) for x in tree.children]
    assert names == [
        ("compiled code", "compiled", 8.612),
        ("call", "yours", 0.589),
        ("g", "library", 0.4),
        ("", "library", 0.3),
        ("often", "yours", 0.05),
    ]
    # Its own time, as pyinstrument's `[self]`, is compiled code: less is left out.
    (compiled,) = tree.children[1].children
    assert (compiled.name, round(compiled.seconds, 9)) == ("compiled code", 0.54)
    (bind,) = compiled.children
    assert (bind.name, round(bind.seconds, 9), bind.own) == ("bind", 0.54, bind.seconds)


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("/x/_jit.py", "_bind", "_bind (bind)"),
        ("/x/_jit.py", "A._preprocess", "_preprocess (partition)"),
        ("/x/_jit.py", "_postprocess", "_postprocess (unflatten)"),
        ("/x/tree_util.py", "tree_flatten", "tree_flatten (flatten)"),
        ("/x/array.py", "block_until_ready", "block_until_ready (wait)"),
        ("/x/other.py", "_bind", "_bind"),
        ("/x/_jit.py:3", "bind", "bind"),
    ],
)
def test_stages_in_a_tree(file, function, name):
    assert make_tree(frame(file, function, 1.0), 1, []).name == name


def test_a_part_that_was_sampled_is_not_compiled_code():
    top = frame("/x/_profile.py", "run_calls", 6.0, frame("/x/_jit.py", "_bind", 1.0))
    parts = [Part("bind", 1.0, True), Part("state", 9.0, True)]
    parts += [Part("wait", 0.0, True), Part("lookup", 3.0, True, "what")]
    (compiled, _) = make_tree(top, 2, parts).children
    assert (compiled.place, compiled.own, compiled.kind) == (
        "divided as timed",
        0,
        "compiled",
    )
    assert [(x.name, x.place, x.seconds) for x in compiled.children] == [
        ("lookup", "what", 3.0)
    ]
    (compiled, _) = make_tree(top, 2, parts[:3]).children
    assert (compiled.place, compiled.seconds, compiled.own) == ("", 3.0, 3.0)


def contender(name, calls, tree, *parts, notes=()):
    return _profile.Contender(name, calls, 1.0, tree, WarmCall(0.5, 1.0, parts, notes))


def test_the_tables_of_a_profile():
    rows = [leaf(f"f{i}", 0.01 * (i + 1), place=f"{i}") for i in range(11)]
    rows += [leaf("own", 0.01, "yours"), leaf("small", 0.0099, "yours")]
    rows += [leaf("compiled code", 0.5, "compiled")]
    tree = Node("the calls", "", 1.0, 0.4, "library", tuple(rows))
    empty = Node("the calls", "", 0.0, 0.0, "library", (leaf("none", 0.0),))
    bind, wait = Part("bind", 0.25, True), Part("wait", 0.5, False)
    profile = _profile.Profile(
        "f",
        (
            contender("one", 1000, tree, bind, wait, notes=("noisy",)),
            contender("two", 2000, empty, wait),
        ),
    )
    assert profile.title() == (
        "f: warm calls, timed and sampled: 1,000 under one, 2,000 under two"
    )
    parts, functions = profile.tables()
    assert parts.header == ("part", "one", "share", "two", "share", "")
    what = _profile.PARTS
    assert parts.rows == [
        ("bind", "250 ms", "25%", "-", "-", what["bind"]),
        ("wait", "500 ms", "50%", "500 ms", "50%", what["wait"]),
        ("returns", "500 ms", "", "500 ms", "", "until the call returns"),
        ("is ready", "1 s", "", "1 s", "", "until the result is ready"),
    ]
    assert parts.notes[1:] == ("one: noisy",)
    # The user's own first, then by share; twelve at most.
    assert functions.rows == [
        ("one", "1%", "10 ms", "own", "lib.py"),
        *[
            ("one", f"{i}%", f"{i}0 ms", f"f{i - 1}", f"{i - 1}")
            for i in range(11, 0, -1)
        ],
    ]
    both = tree_text(tree), tree_text(empty)
    assert (
        profile.full_text()
        == f"{profile}\n\n--- one ---\n{both[0]}\n\n--- two ---\n{both[1]}"
    )
    page = _profile.html_page([profile, profile])
    assert "<title>Profile: f, f</title>" in page and _profile_tree.STYLE in page
    assert page.count("<h4>one</h4>") == page.count("<h4>two</h4>") == 2
    one = _profile.Profile("f", (contender("one", 1000, tree),) * 2)
    assert one.title() == "f: 1,000 warm calls each, timed and sampled"
