"""Whether the machine had time for the program."""

import time
from pathlib import Path


# Nanoseconds that the main thread ran, and that it could have run and did not, as other
# programs did. On Linux only.
_FILE = Path("/proc/self/schedstat")
# The same of each thread.
_THREADS = Path("/proc/self/task")
# Seconds. Of less than this nothing can be said.
_LEAST = 1.0


class Processor:
    """The share of its time that a program had a processor, of what it could use."""

    def __init__(self) -> None:
        self._begun = _read(_FILE)
        self._waited = _all_waited()
        self._clock, self._ran = time.monotonic(), time.process_time()

    def share(self, compiling: float = 0.0) -> float:
        """From 0 to 1 since it was made; 1 if it is not known.

        For so many seconds of this time, XLA has compiled.
        """
        now = _read(_FILE)
        if now is None or self._begun is None:
            return 1.0
        ran, waited = (new - old for new, old in zip(now, self._begun, strict=True))
        main = ran / (ran + waited) if ran > 0 and ran + waited >= _LEAST else 1.0
        return min(main, self._share_of_compiler(compiling))

    def _share_of_compiler(self, compiling: float) -> float:
        # The main thread sleeps while those of XLA compile, so all of them count. They
        # also wait for one another, but then the process is not short of time.
        compiling = min(compiling, time.monotonic() - self._clock)
        ran = time.process_time() - self._ran
        lacking = compiling - ran
        if lacking < _LEAST or _all_waited() - self._waited < lacking:
            return 1.0  # it may have read files, or had a process compile
        return ran / compiling


def _all_waited() -> float:
    found = map(_read, _THREADS.glob("*/schedstat"))
    return sum(times[1] for times in found if times is not None)


def _read(file: Path) -> tuple[float, float] | None:
    try:
        ran, waited = file.read_text().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return None
