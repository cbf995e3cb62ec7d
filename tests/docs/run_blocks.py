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


page, blocks = sys.argv[1], json.load(sys.stdin)
code = ""
for line, source in blocks:
    code += "\n" * (line - 1 - code.count("\n")) + source
linecache.cache[page] = (len(code), None, code.splitlines(keepends=True), page)
# What is defined in `__main__` names it, and must be found there.
runner, main = sys.modules["__main__"], types.ModuleType("__main__")
main.__file__ = page
sys.modules["__main__"] = main
printed = []
for line, source in blocks:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n" * (line - 1) + source, page, "exec"), main.__dict__)
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
