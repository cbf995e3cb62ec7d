"""What `eqx-fastjit bench` prints."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._case import DESCRIPTIONS
from ._grids import EXPLANATION, Grid, grids, noise, present
from ._results import describe, Results


_STYLES = {"": "", "win": "bold green", "loss": "bold red", "even": "dim"}


def print_results(console: Console, results: Results) -> None:
    """Print all there is to say about the results."""
    console.print(describe(results), highlight=False, markup=False)
    for grid in grids(results):
        console.print(_table(grid))
    for name in present(results["cases"]):
        console.print(f"{name}: {DESCRIPTIONS[name]}.", highlight=False)
    if results["cases"]:
        console.print(EXPLANATION, highlight=False)
    for line in noise(results):
        console.print(line, style="yellow", highlight=False, markup=False)
    for line in results["problems"]:
        console.print(f"Not timed: {line}", style="red", highlight=False, markup=False)


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left")
    name, *others = grid.columns
    table.add_column(name)
    for column in others:
        table.add_column(column, justify="right")
    for row in grid.rows:
        table.add_row(*[Text(cell.text, _STYLES[cell.kind]) for cell in row])
    return table
