"""What `eqx-fastjit bench` prints."""

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ._case import DESCRIPTIONS
from ._grids import EXPLANATION, Grid, grids, noise, present, times_and_ratios
from ._results import describe, Results


_STYLES = {"": "", "win": "bold green", "loss": "bold red", "even": "dim"}


def print_results(console: Console, results: Results) -> None:
    """Print all there is to say about the results."""
    console.print(describe(results), highlight=False, markup=False)
    for grid in grids(results):
        _print_grid(console, grid)
    for name in present(results["cases"]):
        console.print(f"{name}: {DESCRIPTIONS[name]}.", highlight=False)
    if results["cases"]:
        console.print(EXPLANATION, highlight=False)
    for line in noise(results):
        console.print(line, style="yellow", highlight=False, markup=False)
    for line in results["problems"]:
        console.print(f"Not timed: {line}", style="red", highlight=False, markup=False)


def _print_grid(console: Console, grid: Grid) -> None:
    """As one table, or as two where the terminal is too narrow for that."""
    options = console.options.update(max_width=1000)
    width = console.measure(_table(grid), options=options).maximum
    for part in [grid] if width <= console.width else times_and_ratios(grid):
        console.print(_table(part))


def _table(grid: Grid) -> Table:
    table = Table(title=grid.title, title_justify="left", box=SIMPLE_HEAD)
    name, *others = grid.columns
    table.add_column(name, no_wrap=True)
    for column in others:
        # Long names in several lines: the figures below them are short.
        heading = column.replace("_", "_\n").replace("/", "/\n")
        table.add_column(heading, justify="right", no_wrap=True)
    for row in grid.rows:
        # The spread below the median, so that seven contenders fit on 80 columns.
        cells = [Text(c.text.replace(" ±", "\n±"), _STYLES[c.kind]) for c in row]
        table.add_row(*cells)
    return table
