"""Results as Jupyter shows them."""

import dataclasses
from html import escape

from ._grids import EXPLANATION, grids
from ._markdown import markdown
from ._results import describe, Results


_STYLE = """
.eqx-fastjit th, .eqx-fastjit td { text-align: right; }
.eqx-fastjit th:first-child, .eqx-fastjit td:first-child { text-align: left; }
.eqx-fastjit .win { font-weight: bold; }
"""


@dataclasses.dataclass(frozen=True)
class Tables:
    """The tables of results, for a notebook.

    **Arguments:**

    - `results`: as `load` reads them.
    """

    results: Results

    def __str__(self) -> str:
        return markdown(self.results)

    def _repr_html_(self) -> str:
        tables = "\n".join(
            f"<h3>{escape(grid.title)}</h3>\n{grid.html()}"
            for grid in grids(self.results)
        )
        return (
            f'<style>{_STYLE}</style><div class="eqx-fastjit">{tables}'
            f"<p>{EXPLANATION}</p><p>{escape(describe(self.results))}</p></div>"
        )
