"""Trace a function for given arguments, and save it to a file. In another process,
eqx_fastjit.load loads it without tracing it again. This imports the modules, and traces
the function, but does not run it.
"""

import argparse
import importlib
import os
import sys
from typing import Any

import eqx_fastjit
from eqx_fastjit._units import show_bytes

from ._common import add_options, check_output, CommandError


# Those that JAX can lower for on any machine.
_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def declare(parser: argparse.ArgumentParser) -> None:
    options = {
        "function": {
            "metavar": "MODULE:FUNCTION",
            "help": "a function (jitted or not), a Module, or a method of a Module",
        },
        "--args": {
            "metavar": "MODULE:FACTORY",
            "required": True,
            "help": "a function without parameters that returns the arguments: a "
            "tuple, or a dictionary of keyword arguments. A jax.ShapeDtypeStruct may "
            "be used in place of an array",
        },
        "-o --output": {
            "metavar": "FILE",
            "required": True,
            "help": "the file to write",
        },
        "--compiled": "also save native code for this kind of machine, so that loading "
        "does not compile",
        "--no-portable": {
            "dest": "portable",
            "action": "store_false",
            "help": "with --compiled: only save native code",
        },
        "--platforms NAME,...": "the platforms of the portable form: cpu, cuda, rocm, "
        "tpu (default: the one in use)",
        "--vjp-order N": "how many times the portable form can be differentiated "
        "(default: 0)",
    }
    add_options(parser, options, vjp_order=0)


def main(options: argparse.Namespace) -> int:
    if not options.portable and not options.compiled:
        raise CommandError("--no-portable: only with --compiled")
    if options.vjp_order < 0:
        raise CommandError(f"--vjp-order {options.vjp_order}: expected at least 0")
    check_output("-o", options.output)
    output = os.path.abspath(options.output)
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    function = _wrapped(_find(options.function))
    args, kwargs = _split(_find(options.args)(), options.args)
    platforms = options.platforms.split(",") if options.platforms else None
    for platform in platforms or ():
        _check_platform(platform)
    try:
        function.export(*args, **kwargs).save(
            output,
            portable=options.portable,
            compiled=options.compiled,
            platforms=platforms,
            vjp_order=options.vjp_order,
        )
    except ValueError as e:
        raise CommandError(str(e)) from None
    print(f"wrote {options.output} ({show_bytes(os.path.getsize(output))})")
    return 0


def _check_platform(platform: str) -> None:
    import jax

    if platform not in _PLATFORMS and platform != jax.default_backend():
        expected = ", ".join(_PLATFORMS)
        raise CommandError(f"--platforms {platform!r}: expected {expected}")


def _find(text: str) -> Any:
    """What `MODULE:NAME` says."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise CommandError(f"{text!r}: expected MODULE:NAME")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as e:
        raise CommandError(f"{text!r}: {e}") from None
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise CommandError(f"{text!r}: no {part!r} there") from None
    return found


def _wrapped(function: Any) -> Any:
    """A function of ours: with the `donate` that Equinox's was given."""
    from eqx_fastjit._compat import filter_jit_options

    if isinstance(function, eqx_fastjit.JitWrapped | eqx_fastjit.BoundJit):
        return function
    if (found := filter_jit_options(function)) is not None:
        fun, donate = found
        return eqx_fastjit.filter_jit(fun, donate=donate)  # pyright: ignore
    if not callable(function):
        raise CommandError(f"{function!r} cannot be called")
    return eqx_fastjit.filter_jit(function)


def _split(arguments: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(arguments, dict):
        return (), arguments
    if isinstance(arguments, tuple | list):
        return tuple(arguments), {}
    raise CommandError(
        f"--args {name} returned `{type(arguments).__name__}`; expected a tuple of "
        "arguments, or a dictionary of keyword arguments"
    )
