"""What a call of `equinox.filter_jit` consists of, in instructions: docs/upstream.md.

    python -m benchmarks.upstream --json benchmarks/results/upstream.json

Each part of a call is replaced, one at a time, by what does the same without C.
callgrind counts the instructions of the calling thread: the clock of a shared machine
cannot tell such parts. Needs valgrind, its headers and a C compiler; takes ten minutes.
"""

import argparse
import ctypes
import functools
import json
import sys
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import equinox._jit as jit  # noqa: TID251
import jax
import numpy as np
from equinox._compile_utils import hashable_combine  # noqa: TID251

from benchmarks import cases, instructions, parser_of
from benchmarks.pages import made_by
from benchmarks.results_file import new_results
from benchmarks.table import markdown_table
from benchmarks.timing import check_equal


CASES = ("identity", "mlp_8", "gpt")
# What the page says of a part, in the order of the table.
PARTS = {
    "attributes": "**Attributes** of the wrapper without Module's `__getattribute__`",
    "bind": "**Bind** by `inspect.Signature` only if there are keywords or defaults",
    "build": "**Build** the result by one `tree_unflatten`, as arguments are",
    "errors": "**Errors**: no logging filter and no random bytes in each call",
    "tracer": "**Tracer check** of the marker by its type",
    "read": "Read leaves in a comprehension, and know arrays by their type",
}
WORDS = {
    **PARTS,
    "all": "the first five together",
    "wait": "no tracer check and no waiting",
    "jit": "`jax.jit`, static arguments removed by hand",
    "ours": "eqx_fastjit, which is in C",
}


def _parts() -> dict[str, dict[str, Any]]:
    """For each part, what is put in the place of names of `equinox._jit`.

    Of the parts, `""` replaces nothing. Of the names, it is the `__getattribute__` of
    what `filter_jit` returns.
    """
    array = type(jax.numpy.zeros(()))
    array_types = frozenset((array, np.ndarray))

    def bind(signature: Any, args: Any, kwargs: Any, slow: Any = jit._bind) -> Any:
        if not kwargs and len(args) == len(signature.parameters):
            return args, kwargs
        return slow(signature, args, kwargs)

    def read(pytree: Any, _: Any, slow: Any = jit.is_array) -> Any:
        leaves, treedef = jax.tree.flatten(pytree)
        are_arrays = [type(x) in array_types or slow(x) for x in leaves]
        pairs = list(zip(leaves, are_arrays, strict=True))
        dynamic = tuple([x if is_array else None for x, is_array in pairs])
        static = tuple([None if is_array else x for x, is_array in pairs])
        return dynamic, (static, treedef)

    def build(out: Any) -> Any:
        _, dynamic, static = out
        return hashable_combine(dynamic, static.value)

    nothing = SimpleNamespace(addFilter=lambda _: None, removeFilter=lambda _: None)
    logging = SimpleNamespace(getLogger=lambda _: nothing)
    # As no object is an instance of `()`, nothing is a tracer; and under "wait" no
    # marker is an array, which Equinox would wait for.
    tracer: Any = {"jit": jax.jit, "core": SimpleNamespace(Tracer=())}
    parts = {
        "attributes": {"": object.__getattribute__},
        "bind": {"_bind": bind},
        "read": {"hashable_partition": read},
        "build": {"partition": jit.hashable_partition, "_postprocess": build},
        "tracer": {"jax": SimpleNamespace(**tracer, Array=array)},
        "errors": {
            "logging": logging,
            "_FilterCallback": lambda: None,
            "os": SimpleNamespace(urandom=lambda _: b""),
        },
        "wait": {"jax": SimpleNamespace(**tracer, Array=())},
    }

    together: dict[str, Any] = {}
    for part in PARTS:
        if part != "read":
            together |= parts[part]
    return {"": {}, **parts, "all": together}


def _replace(names: dict[str, Any]) -> dict[str, Any]:
    """Put something in the place of names. Returns what was there."""
    before: dict[str, Any] = {}
    for name, value in names.items():
        if name:
            before[name] = getattr(jit, name)
            setattr(jit, name, value)
        else:
            before[name] = jit._JitWrapper.__getattribute__
            # Not by the metaclass, which would wrap it.
            type.__setattr__(jit._JitWrapper, "__getattribute__", value)
    return before


def _calls(library: str) -> None:
    """Make the calls that callgrind counts."""
    marks = ctypes.PyDLL(library)
    jax.config.update("jax_enable_compilation_cache", False)
    expected: dict[str, Any] = {}
    for part, names in _parts().items():
        before = _replace(names)
        for case in CASES:
            if part:
                calls = {part: cases.CASES[case].build(("eqx",))["eqx"]}
                check_equal({"eqx": functools.partial(expected.get, case), **calls})
            else:
                calls = cases.CASES[case].build(("eqx", "jit", "ours"))
                check_equal(calls)
                expected[case] = calls["eqx"]()
            # Python specializes bytecode again after a name was replaced.
            instructions.record(marks, case, calls, warm=300)
        _replace(before)
        eqx.clear_caches()


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file: what each part saves, of Equinox's instructions."""
    by_case: dict[str, dict[str, float]] = results["instructions"]
    instructions_of_a_call = [f"{counts['eqx']:,.0f}" for counts in by_case.values()]
    rows = [["instructions of a call", *instructions_of_a_call]]
    for name, words in WORDS.items():
        saved = [1 - counts[name] / counts["eqx"] for counts in by_case.values()]
        rows.append([words, *(f"{round(100 * share)}%" for share in saved)])

    table = markdown_table(["", *(f"`{case}`" for case in by_case)], rows)
    return f"{table}\n\n{made_by(results)}"


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = parser_of("benchmarks.upstream", __doc__)
    parser.add_argument("library", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.library:
        _calls(options.library)
        return 0

    results = new_results("benchmarks.upstream")
    try:
        results["instructions"] = instructions.count("benchmarks.upstream")
    except instructions.CannotCount as e:
        print(f"benchmarks.upstream: {e}", file=sys.stderr)
        return 2

    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
