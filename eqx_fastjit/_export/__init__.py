"""Jitted functions in files: traced and compiled once, not once per process.

    _exported   `f.export(...)`: what is written
    _loaded     `load(...)`: a file as a callable
    _show       a file in words
    _program    the arrays-to-arrays program that is exported
    _checks     `eqx.error_if` as a result of that program
    _tree       pytrees and statics as data
    _names      classes and functions by name, and which of them may be imported
    _arrays     shapes, dtypes and shardings as data
    _format     the container: header, sections, checksums

Nothing of this is imported before it is used. The page on exporting in `docs/` has the
format.
"""

# What loading native code takes of tracing, lowering and compiling: the most that was
# asked for of the median program in `benchmarks/startup.py`.
LOADING = 0.15
