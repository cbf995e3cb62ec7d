"""The signatures that a program uses, as a text that can be saved and compared.

A signature is a call less its values: for each leaf its path, with shape and dtype of
an array, and type and short text of a static. The text is the same on each machine and
for each run: no absolute paths, no addresses, no hashes, no line numbers.
"""

import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterator
from typing import Any, TYPE_CHECKING, TypeGuard


if TYPE_CHECKING:
    from eqx_fastjit._record import Trace

SCHEMA = 1

# JAX's settings that are part of a signature if they differ from the default.
_SETTINGS = {
    "jax_default_device": "None",
    "jax_default_matmul_precision": "None",
    "jax_default_prng_impl": "threefry2x32",
    "jax_enable_x64": "False",
    "jax_numpy_dtype_promotion": "standard",
    "mesh": None,
}

# Sections of leaves, by path: `{"arrays": {"model.weight": "float32[4,4]"}, ...}`.
Signature = dict[str, dict[str, str]]
# By function.
Signatures = dict[str, list[Signature]]


class LockError(Exception):
    """A lock file cannot be read. The text says why."""


def signature_of(trace: "Trace") -> Signature:
    out: Signature = {"arrays": {}, "nodes": {}, "statics": {}}
    for entry in trace.entries:
        facets = dict(entry.facets)
        if entry.kind == "array":
            out["arrays"][entry.path] = _array(facets)
        elif entry.kind == "static":
            value = _LINE_NUMBER.sub(r"(\1)", facets["value"])
            out["statics"][entry.path] = f"{value} ({facets['type']})"
        elif facets["type"] == "NoneType":
            out["nodes"][entry.path] = "None"
        else:
            out["nodes"][entry.path] = f"{facets['type']} of {facets['size']}"
    out["settings"] = {
        name: value
        for name, value in trace.config
        if name in _SETTINGS and value != _SETTINGS[name]
    }
    return {name: section for name, section in out.items() if section}


# Functions are described by name, file and line: editing above must not matter.
_LINE_NUMBER = re.compile(r"\(([^()\s]+):\d+\)")


def _array(facets: dict[str, str]) -> str:
    shape = facets["shape"].strip("(),").replace(" ", "")
    text = f"{facets['dtype']}[{shape}]"
    if facets["weak_type"] == "True":
        text += " weakly typed"
    # For a single device, omit its name, which depends on the machine.
    if " over " in (sharding := facets.get("sharding", "")):
        text += f" {sharding}"
    return text


class Recorder:
    """Collects the signatures of calls that are traced, but for those inside others.

    Files in the script's folder are named relative to it. `on_signature` is called with
    the function, the signature and the trace of each, `on_jax` once there is JAX.
    """

    def __init__(
        self,
        folder: str,
        on_signature: Callable[[str, Signature, "Trace"], None] | None = None,
        on_jax: Callable[[], None] | None = None,
    ):
        self.folder = folder
        self.on_signature = on_signature
        self.on_jax = on_jax
        # With the call's line, where it was first seen.
        self.seen: dict[tuple[str, str], tuple[Signature, str]] = {}
        self.watches_ours = False

    def begin(self) -> None:
        """The program is about to begin."""

    def jax_imported(self) -> None:
        if self.on_jax is not None:
            self.on_jax()

    def equinox_imported(self) -> None:
        """Equinox is there, and our `filter_jit` in its place."""
        from eqx_fastjit import _record

        self.watches_ours = True
        _record.after.append(self._after)

    def stop(self) -> None:
        if self.watches_ours:
            from eqx_fastjit import _record

            _record.after.remove(self._after)

    def _after(self, trace: "Trace") -> None:
        if trace.inside is not None or trace.failed:
            return
        place, name = trace.function.place, trace.function.qualname
        if place is not None:
            name = f"{self._relative(place.file)}:{name}"
        signature = signature_of(trace)
        site = "?:0"
        if trace.site is not None:
            site = f"{self._relative(trace.site.file)}:{trace.site.line}"
        self.seen.setdefault((name, key_of(signature)), (signature, site))
        if self.on_signature is not None:
            self.on_signature(name, signature, trace)

    def _relative(self, file: str) -> str:
        # The innermost of these: an environment may be inside the script's folder.
        folders = [sysconfig.get_path(n) for n in ("purelib", "platlib", "stdlib")]
        folders += [self.folder, *filter(os.path.isabs, sys.path)]
        file = os.path.abspath(file)
        inside = [f for f in folders if file.startswith(os.path.join(f, ""))]
        if not inside:
            return os.path.basename(file)
        return os.path.relpath(file, max(inside, key=len)).replace(os.sep, "/")

    def signatures(self) -> Signatures:
        """Everything that was seen, in a reproducible order."""
        out: Signatures = {}
        for (name, _), (signature, _) in sorted(self.seen.items()):
            out.setdefault(name, []).append(signature)
        return out


def key_of(signature: Signature) -> str:
    """Equal for equal signatures."""
    return json.dumps(signature, sort_keys=True)


def dump(signatures: Signatures) -> str:
    """The text of a lock file: a line for each leaf, sorted."""
    data = {"schema": SCHEMA, "functions": signatures}
    return json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load(text: str) -> Signatures:
    """The signatures in the text of a lock file. Raises `LockError`."""
    try:
        data = json.loads(text)
    except ValueError as e:
        raise LockError(f"not JSON ({e})") from None
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        raise LockError(f"expected schema {SCHEMA}, found {schema!r}")
    functions = data.get("functions")
    if not _is_signatures(functions):
        raise LockError("expected lists of signatures under 'functions'")
    return functions


def _is_signatures(functions: Any) -> TypeGuard[Signatures]:
    # From the outside in: functions, their signatures, sections of these, and leaves.
    found: list[Any] = [functions]
    for kind in (dict, list, dict, dict):
        if not all(isinstance(x, kind) for x in found):
            return False
        found = [y for x in found for y in (x if kind is list else x.values())]
    return all(isinstance(text, str) for text in found)


def explain_unknown(
    name: str, signature: Signature, site: str, locked: Signatures
) -> Iterator[str]:
    """Why a signature is not in a lock file, as lines of text."""
    known = locked.get(name)
    if not known:
        yield f"{name}: not in the file; called at {site}"
        return
    changes = min((list(_changes(old, signature)) for old in known), key=len)
    yield f"{name}: a new signature in the call at {site}; unlike the nearest known:"
    yield from changes[:10]
    if len(changes) > 10:
        yield f"    and {len(changes) - 10} more"


def _changes(old: Signature, new: Signature) -> Iterator[str]:
    for section in sorted({*old, *new}):
        before, after = old.get(section, {}), new.get(section, {})
        for path in sorted({*before, *after}):
            pair = before.get(path, "nothing"), after.get(path, "nothing")
            if pair[0] != pair[1]:
                yield f"    `{path}`: {pair[0]} -> {pair[1]}"
