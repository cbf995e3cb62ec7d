"""What a call of `equinox.filter_jit` consists of, in instructions: docs/upstream.md.

    python -m benchmarks.upstream --json benchmarks/results/upstream.json

Each part of a call is replaced, one at a time, by what does the same without C.
callgrind counts the instructions of the calling thread: the clock of a shared machine
cannot tell such parts. Needs valgrind, its headers and a C compiler; takes ten minutes.
"""

import argparse
import ctypes
import json
import sys
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import equinox._jit as jit  # noqa: TID251
import jax
import numpy as np
from equinox._compile_utils import hashable_combine  # noqa: TID251

from benchmarks import cases, instructions, pages, parser_of
from benchmarks.results_file import new_results


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

    The key `""` is the `__getattribute__` of what `filter_jit` returns.
    """
    array = type(jax.numpy.zeros(()))
    arrays = frozenset((array, np.ndarray))

    def bind(signature: Any, args: Any, kwargs: Any, slow: Any = jit._bind) -> Any:
        plain = not kwargs and len(args) == len(signature.parameters)
        return (args, kwargs) if plain else slow(signature, args, kwargs)

    def read(pytree: Any, _: Any, slow: Any = jit.is_array) -> Any:
        leaves, treedef = jax.tree.flatten(pytree)
        found = [type(x) in arrays or slow(x) for x in leaves]
        both = list(zip(leaves, found, strict=True))
        dynamic = tuple([x if is_array else None for x, is_array in both])
        return dynamic, (
            tuple([None if is_array else x for x, is_array in both]),
            treedef,
        )

    def build(out: Any) -> Any:
        return hashable_combine(out[1], out[2].value)

    nothing = SimpleNamespace(addFilter=lambda _: None, removeFilter=lambda _: None)
    logging = SimpleNamespace(getLogger=lambda _: nothing)
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
    together = [parts[x] for x in PARTS if x != "read"]
    return {"": {}, **parts, "all": {k: v for x in together for k, v in x.items()}}


def _replace(names: dict[str, Any]) -> dict[str, Any]:
    """Put something in the place of names; what was there."""
    was: dict[str, Any] = {}
    for name, value in names.items():
        home, attribute = (jit, name) if name else (jit._JitWrapper, "__getattribute__")
        was[name] = getattr(home, attribute)
        (setattr if name else type.__setattr__)(home, attribute, value)
    return was


def _calls(library: str) -> None:
    """Make the calls that callgrind counts."""
    marks = ctypes.PyDLL(library)
    jax.config.update("jax_enable_compilation_cache", False)
    for part, names in _parts().items():
        was = _replace(names)
        for case in CASES:
            contenders = ("eqx",) if part else ("eqx", "jit", "ours")
            calls = cases.CASES[case].build(contenders)
            calls = {part or who: call for who, call in calls.items()}
            # Python specializes bytecode again after a name was replaced.
            instructions.record(marks, case, calls, warm=300)
        _replace(was)
        eqx.clear_caches()


def markdown(results: dict[str, Any]) -> str:
    """The table of a results file: what each part saves, of Equinox's instructions."""
    counts: dict[str, dict[str, float]] = results["instructions"]
    rows = [
        ["instructions of a call", *(f"{by['eqx']:,.0f}" for by in counts.values())]
    ]
    for name, words in WORDS.items():
        saved = [1 - by[name] / by["eqx"] for by in counts.values()]
        rows.append([words, *(f"{round(100 * x)}%" for x in saved)])
    table = pages.markdown_table(["", *(f"`{case}`" for case in counts)], rows)
    return f"{table}\n\n{pages.made_by(results)}"


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
