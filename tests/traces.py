"""Counts the traces of a function."""

from eqx_fastjit import filter_jit


def count_traces(f, **options):
    """A jitted function, and a list that grows by one entry with each trace."""
    traces = []

    def counted(*args):
        traces.append(None)
        return f(*args)

    return filter_jit(counted, **options), traces
