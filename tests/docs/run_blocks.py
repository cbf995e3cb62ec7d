"""Runs blocks of code as one `__main__`, and prints what each of them prints, as JSON.

`[[line, source], ...]` is on stdin, the page the only argument. Line numbers are those
of the page, for tracebacks and `explain`.
"""

import contextlib
import io
import json
import linecache
import sys
import types


def at_line(line, source):
    """Code whose first line has this number."""
    return "\n" * (line - 1) + source


page = sys.argv[1]
blocks = json.load(sys.stdin)

# The page as code alone, for `inspect` and tracebacks.
code = ""
for line, source in blocks:
    code += "\n" * (line - 1 - code.count("\n")) + source
linecache.cache[page] = (len(code), None, code.splitlines(keepends=True), page)

# What is defined in `__main__` names it, and must be found there.
runner = sys.modules["__main__"]  # kept alive
main = types.ModuleType("__main__")
main.__file__ = page
sys.modules["__main__"] = main

printed = []
for line, source in blocks:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(at_line(line, source), page, "exec"), main.__dict__)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
