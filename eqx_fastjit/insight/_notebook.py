"""`%load_ext eqx_fastjit`: the magics `%%doctor` and `%doctor`, where IPython runs."""

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.core.magic import no_var_expand
from IPython.display import display

from ._doctor import doctor as watched


def register(shell: Any) -> None:
    """Add the magics to a shell."""

    @no_var_expand
    def doctor(line: str, cell: str | None = None) -> None:
        """Run a cell or a statement, and show what the doctor says of it.

        `%%doctor` at the top of a cell; `%doctor train(model)` in one.
        """
        # In place of the line of the magic, so that the others keep their numbers.
        source = line if cell is None else f"# %%doctor\n{cell}"
        # The number of the cell that is being run, which is this one.
        number = len(shell.history_manager.input_hist_raw) - 1
        with watched(f"In[{number}]") as report, _quiet(shell, number):
            result = shell.run_cell(source, store_history=False)
        display(report)
        result.raise_error()  # which shows the traceback, once

    shell.register_magic_function(doctor, "line_cell", "doctor")


@contextlib.contextmanager
def _quiet(shell: Any, number: int) -> Iterator[None]:
    """A block in which a cell of that number is run, and shows no traceback.

    There may be another such block around it.
    """
    names = ("showtraceback", "showsyntaxerror")
    count, before = shell.execution_count, dict(vars(shell))
    shell.execution_count = number
    for name in names:
        setattr(shell, name, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        shell.execution_count = count
        for name in names:
            delattr(shell, name)  # what its class has is back
            if name in before:
                setattr(shell, name, before[name])
