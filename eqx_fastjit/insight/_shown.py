"""How results of the tools are shown: as text, and in a notebook as a page."""


class Shown:
    """A result whose `str` is for people."""

    def __repr__(self) -> str:
        return str(self)

    def _html(self) -> str:
        from ._page import text_page

        return text_page(type(self).__name__, str(self))

    def _repr_html_(self) -> str | None:
        try:
            from ._page import in_notebook
        except ImportError:  # of jinja2, which only the extra `insight` has
            return None
        return in_notebook(self._html())
