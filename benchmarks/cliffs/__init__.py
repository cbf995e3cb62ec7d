"""Random programs on which a call costs more than it should; see `__main__.py`."""
