"""How a result is shown: as text, and in a notebook as a page."""


class Shown:
    """A result whose `str` is for people, and whose `to_html()` is a page."""

    def __repr__(self) -> str:
        return str(self)

    def to_html(self) -> str:
        """The result as a page of its own, which loads nothing."""
        raise NotImplementedError

    def _repr_html_(self) -> str | None:
        try:
            from .show._page import in_notebook
        except ImportError:  # of jinja2, which only the extra `insight` has
            return None
        return in_notebook(self.to_html())
