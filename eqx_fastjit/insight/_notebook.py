"""The magics of `%load_ext eqx_fastjit`: `%%doctor` and `%doctor`.

Only imported where IPython is running.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.core.magic import line_cell_magic, Magics, magics_class, no_var_expand
from IPython.display import display

from ._doctor import doctor


@magics_class
class DoctorMagics(Magics):
    """The doctor, of what a notebook runs."""

    @no_var_expand
    @line_cell_magic
    def doctor(self, line: str, cell: str | None = None) -> None:
        """Run a cell or a statement, and show what the doctor says of it.

        `%%doctor` at the top of a cell; `%doctor train(model)` in one.
        """
        # In place of the line of the magic, so that the others keep their numbers.
        source = line if cell is None else f"# %%doctor\n{cell}"
        shell: Any = self.shell
        number = len(shell.history_manager.input_hist_raw) - 1
        with doctor(f"In[{number}]") as report, _as_cell(shell, number):
            result = shell.run_cell(source, store_history=False)
        display(report)
        result.raise_error()  # as the cell's own, which is then shown once


@contextlib.contextmanager
def _as_cell(shell: Any, number: int) -> Iterator[None]:
    """Within this context, what is run is a cell of this number, without tracebacks."""
    names = ("showtraceback", "showsyntaxerror")
    for name in names:
        setattr(shell, name, lambda *args, **kwargs: None)
    count, shell.execution_count = shell.execution_count, number
    try:
        yield
    finally:
        shell.execution_count = count
        for name in names:
            delattr(shell, name)  # what its class has is back
