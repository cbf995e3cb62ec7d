"""What a process holds."""

import gc
import os
import tracemalloc
import weakref


class Held:
    """Compared by identity, and weakly referenceable."""


def collect():
    gc.collect()
    gc.collect()


def dead(*references):
    """Whether what each weak reference refers to is gone, after a collection."""
    collect()
    return [reference() is None for reference in references]


def references(*things):
    return [weakref.ref(thing) for thing in things]


def resident():
    """Bytes of the process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(do, n):
    """What the second half of `n` calls grew: bytes of Python each, bytes in all."""
    for i in range(n // 2):
        do(i)
    collect()
    tracemalloc.start()
    before, resident_before = tracemalloc.get_traced_memory()[0], resident()
    for i in range(n // 2, n):
        do(i)
    collect()
    after = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    return (after - before) / (n - n // 2), resident() - resident_before
