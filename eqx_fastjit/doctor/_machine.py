"""Whether the machine had time for the program."""

from pathlib import Path


# Nanoseconds that the main thread ran, and that it could have run and did not, as other
# programs did. On Linux only.
_FILE = Path("/proc/self/schedstat")
# Seconds. Of less than this nothing can be said.
_LEAST = 1.0


class Processor:
    """The share of its time that a program had a processor, of what it could use."""

    def __init__(self) -> None:
        self._begun = _read()

    def share(self) -> float:
        """From 0 to 1 since it was made; 1 if it is not known."""
        now = _read()
        if now is None or self._begun is None:
            return 1.0
        ran, waited = (new - old for new, old in zip(now, self._begun, strict=True))
        return ran / (ran + waited) if ran > 0 and ran + waited >= _LEAST else 1.0


def _read() -> tuple[float, float] | None:
    try:
        ran, waited = _FILE.read_text().split()[:2]
        return int(ran) / 1e9, int(waited) / 1e9
    except (OSError, ValueError):
        return None
