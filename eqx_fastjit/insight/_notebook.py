"""`%load_ext eqx_fastjit`: the magics `%%doctor` and `%doctor`, where IPython runs."""

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
        # What is run is this cell, whose tracebacks are shown once, by `raise_error`.
        count, number = shell.execution_count, len(shell.history_manager.input_hist_raw)
        shell.execution_count = number - 1
        shell.showtraceback = shell.showsyntaxerror = lambda *args, **kwargs: None
        try:
            with watched(f"In[{number - 1}]") as report:
                result = shell.run_cell(source, store_history=False)
        finally:
            shell.execution_count = count
            del shell.showtraceback, shell.showsyntaxerror  # what its class has is back
        display(report)
        result.raise_error()

    shell.register_magic_function(doctor, "line_cell", "doctor")
