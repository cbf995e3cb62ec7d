"""Jitted functions in files: traced and compiled once, not once per process.

_exported   `f.export(...)`: what is written
_loaded     `load(...)`: a file as a function; `show`: in words
_native     the compiled form
_tree       pytrees and statics as data
_names      classes and functions by name, and which of them may be imported
_format     the file: header, sections, checksum
"""

from ._exported import Exported as Exported
from ._loaded import load_function as load_function, show as show
