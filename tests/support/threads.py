"""Threads that begin at once."""

import threading


def in_threads(n, target):
    """Run `target(i)` in `n` threads at once, and raise the first error."""
    errors = []
    barrier = threading.Barrier(n)

    def run(i):
        try:
            barrier.wait()
            target(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
