"""Counts the traces of a function."""

from eqx_fastjit import filter_jit


def count_traces(f, jit=filter_jit, **options):
    """A jitted function, and a list that grows by one entry with each trace."""
    traces = []

    def counted(*args):
        traces.append(None)
        return f(*args)

    return jit(counted, **options), traces
