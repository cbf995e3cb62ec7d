"""Readable numbers with units."""


def show_bytes(n: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB"):
        if n < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} GiB"


def show_seconds(seconds: float) -> str:
    """A duration with a unit."""
    if seconds >= 60:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if abs(seconds) * factor >= 0.9995:  # rounded, that is 1
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def plural(n: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
