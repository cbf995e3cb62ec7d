"""Random programs on which a call has too much overhead; see `__main__.py`."""
