"""What a case is, and the registry of all cases.

A case is defined once, by a function under `@case`. The command, asv, the tables and
the figures read the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


Call = Callable[[], Any]
# For each contender, a function that builds its call. Only what is asked for is built.
Makers = Mapping[str, Callable[[], Call]]

CONTENDERS = {
    "jit": "`jax.jit`, static arguments removed by hand",
    "flat": "`jax.jit` on a flat list of arrays",
    "eqx": "`equinox.filter_jit`, which always blocks",
    "trick": "`equinox.filter_jit` on leaves: Equinox's low-overhead training loop",
    "ours": "`eqx_fastjit.filter_jit`",
    "install": "`equinox.filter_jit` after `eqx_fastjit.install()`",
    "eager": "no JIT",
}
FUNCTION = ("jit", "flat", "eqx", "ours")
JITS = ("jit", "eqx", "ours")
LOOPS = ("jit", "eqx", "trick", "ours", "install")


@dataclass(frozen=True)
class Case:
    """One thing to time.

    **Arguments:**

    - `name`, `group`, `title`: its name, its group, and what it does.
    - `makers`: returns the `Makers`.
    - `contenders`: the keys of the makers.
    - `first`: whether each call compiles, and is timed alone.
    - `loop`: whether a call is an iteration of a loop.
    - `steps`: how many compiled functions one call dispatches.
    - `rounds`: at most so many rounds, if its calls are long.
    """

    name: str
    group: str
    title: str
    makers: Callable[[], Makers]
    contenders: tuple[str, ...] = FUNCTION
    first: bool = False
    loop: bool = False
    steps: int = 1
    rounds: int | None = None

    @property
    def modes(self) -> tuple[str, ...]:
        """What is timed."""
        if self.first:
            return ("total",)
        return ("iteration",) if self.loop else ("dispatch", "blocked")

    def build(self, contenders: tuple[str, ...] = ()) -> dict[str, Call]:
        """Build the calls of some contenders, by default of all."""
        makers = self.makers()
        return {name: makers[name]() for name in contenders or self.contenders}


CASES: dict[str, Case] = {}


def case(
    group: str, title: str, *, name: str = "", **options: Any
) -> Callable[[Callable[[], Makers]], Callable[[], Makers]]:
    """Register a function that returns `Makers` as a case.

    **Arguments:**

    - `group`, `title`: as for `Case`.
    - `name`: by default the name of the function.
    - `options`: the other fields of `Case`.
    """

    def register(makers: Callable[[], Makers]) -> Callable[[], Makers]:
        key = name or makers.__name__
        assert key not in CASES, f"two cases are named {key}"
        CASES[key] = Case(key, group, title, makers, **options)
        return makers

    return register
