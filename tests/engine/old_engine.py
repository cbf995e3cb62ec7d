"""What the engine of 0.1.0 does otherwise: expected failures, until it is replaced.

This file, and the lines of `conftest.py` that read it, go with that engine.
"""

import re

import pytest


_ARGUMENT = "(argument|list|dict|Module|dataclass)"
_UNHASHABLE = (
    "(set|frozen dataclass with a list|dataclass|attrs|SimpleNamespace|deque|bytearray|"
    "argparse.Namespace|UserDict|list subclass|dict subclass|pydantic|msgspec|"
    "ConfigDict)"
)
_BESIDE_SUCH = (
    "(frozenset|frozen dataclass|attrs, frozen|bytes|list|dict|msgspec, frozen)"
)
_IN_A_DATACLASS = "(list|dict|keys|tuple|JAX array|NumPy array|NumPy scalar)"

# By a part of the test's id: why it fails.
DIFFERS = {
    rf"test_contract.py::\w+\[\w+-{_ARGUMENT}-{_UNHASHABLE}\]": (
        "a static in an argument must be hashable"
    ),
    rf"test_statics_of_another_type_retrace\[\w+-{_ARGUMENT}-{_BESIDE_SUCH}\]": (
        "a static in an argument must be hashable"
    ),
    rf"test_contract.py::\w+\[\w+-dataclass-{_IN_A_DATACLASS}\]": (
        "so must be what a dataclass holds"
    ),
    r"test_statics_of_another_value.*-(JAX|NumPy) array\]": (
        "another array in a static field is a ValueError"
    ),
    r"test_contract.py::test_(equal|an_equal)\w+\[.*-NumPy array\]": (
        "another array in a static field is a ValueError"
    ),
    r"test_statics_of_another_type.*-ConfigDict\]": "compared by its own `__eq__`",
    r"test_a_loop_that_refills_its_batch": "`install()` does not block",
    r"asynchronous": "issue 33 adds the option",
    r"test_paths_of_a_wrapped_module_are_named": "issue 33 asks for names",
    r"test_arrays_of_a_static_module": "arrays are compared by their contents",
}


def mark(items):
    """Mark the tests of what differs."""
    for item in items:
        for pattern, reason in DIFFERS.items():
            if re.search(pattern, item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=False))
