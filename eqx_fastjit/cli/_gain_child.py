"""A run of the program for `eqx-fastjit gain`, in a process of its own."""

import json
import sys
import time
from typing import Any

from ._script import (
    end_as_interrupted,
    install_on_import,
    Program,
    run_script,
    was_interrupted,
)


# For `python -c`: imports this package from where the parent has it, and leaves the
# program nothing of that on its path.
_BOOTSTRAP = (
    "import sys; "
    "here = [] if sys.flags.safe_path else [sys.path.pop(0)]; "
    "sys.path.insert(0, sys.argv[1]); "
    "from eqx_fastjit.cli._gain_child import main; "
    "sys.path[:1] = here; "
    "sys.exit(main(sys.argv[2:]))"
)

_COMPILING = ("/jaxpr_to_mlir_module_duration", "/backend_compile_duration")


def command(package: str, how: str, out: str, seconds: float, program: Program) -> Any:
    """What starts such a process, given the folder that this package is in.

    `how` is `"equinox"`, `"ours"`, or `"count"`: ours, with calls counted, and timed
    for so many seconds after the program's end. `out` is the file for that.
    """
    import subprocess

    flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
    kind = "module" if program.is_module else "script"
    own = [package, how, out, str(seconds), kind, program.name]
    return [sys.executable, *flags, "-c", _BOOTSTRAP, *own, *program.args]


def main(argv: list[str]) -> int:
    """Run the program; returns its exit code."""
    how, out, seconds, kind, name, *args = argv
    census = _Census()
    if how == "count":
        install_on_import(then=census.start)
    elif how == "ours":
        install_on_import()
    code = run_script(name, args, kind == "module")
    if was_interrupted(code):
        end_as_interrupted()
    if how == "count" and code == 0:
        with open(out, "w", encoding="utf-8") as file:
            json.dump(census.result(float(seconds)), file)
    return code


class _Census:
    """What the program calls and compiles."""

    def __init__(self) -> None:
        self.samples: Any = None
        # Seconds that all of the process compiled and lowered, and those of our traces.
        self.compiling = 0.0

    def start(self) -> None:
        """Called once our `filter_jit` is in Equinox's place."""
        import jax

        from eqx_fastjit.insight._samples import Samples

        self.samples = Samples()
        self.samples.start()
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event.endswith(_COMPILING):
            self.compiling += duration_secs

    def result(self, seconds: float) -> dict[str, Any]:
        """The program is over: call its functions again, and time that."""
        if self.samples is None:
            return {"functions": []}
        from eqx_fastjit import _record, engine
        from eqx_fastjit.insight._gain_costs import function_costs

        self.samples.stop()
        compiling = self.compiling
        compiling += sum(t.trace for t in _record.traces if not t.inlined)
        until = time.monotonic() + seconds
        functions: list[dict[str, Any]] = []
        for called in self.samples.ranked():
            costs, reason = function_costs(called, until)
            functions.append(
                {
                    "name": called.name,
                    "file": None if called.place is None else called.place.file,
                    "line": None if called.place is None else called.place.line,
                    "calls": called.calls,
                    "costs": None if costs is None else vars(costs),
                    "reason": reason,
                }
            )
        return {
            "engine": engine(),
            "compiling": compiling,
            "caches": self._has_persistent_cache(),
            "functions": functions,
        }

    def _has_persistent_cache(self) -> bool:
        import jax

        config: Any = jax.config
        return bool(config.jax_compilation_cache_dir)
