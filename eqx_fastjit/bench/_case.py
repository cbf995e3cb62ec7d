"""What a case is, and the one list of them."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


Call = Callable[[], Any]
# For each contender, what builds its call. Only those asked for are built.
# (`exportable`, which is no contender, gives the function and its arguments.)
Makers = Mapping[str, Callable[[], Any]]

DESCRIPTIONS = {
    "eager": "no jit at all",
    "jit": "jax.jit, statics removed by hand",
    "flat": "jax.jit on a flat list of arrays",
    "aot": "compiled ahead of time by jax.jit",
    "eqx": "equinox.filter_jit, which always blocks",
    "ours": "eqx_fastjit.filter_jit",
    "nnx_jit": "flax.nnx.jit",
    "nnx_cached_partial": "flax.nnx.cached_partial of nnx.jit",
}
CONTENDERS = tuple(DESCRIPTIONS)
OF_FLAX = ("nnx_jit", "nnx_cached_partial")

FUNCTION = ("jit", "flat", "aot", "eqx", "ours")  # what any function can be put through


class Measured(NamedTuple):
    """What calls return in cases with their own `modes`, which time themselves.

    `times` has one entry for each mode, in the unit of the case.
    """

    output: Any
    times: Mapping[str, float]


@dataclass(frozen=True)
class Case:
    """One thing to time.

    **Arguments:**

    - `name`, `group`, `title`: its name, its group, and what it does.
    - `size`: numbers that describe it, such as `width`, `layers`, `batch`, `leaves`
        (array leaves of the arguments) and `nodes` (all nodes of the model's pytree,
        leaves included).
    - `contenders`: those that the case has.
    - `makers`: returns the `Makers`. Must be picklable: it runs in a subprocess.
    - `modes`: `dispatch` and `blocked`; other names if calls return `Measured`.
    - `unit`: the unit of its times.
    - `computes`: a name for its output. Cases with the same name have the same output.
    - `max_rounds`: a limit on the rounds, for cases whose rounds are long.
    - `steps`: how many compiled calls one call makes.
    - `cpu_devices`: how many virtual CPU devices it needs.
    - `requires`: packages that the case needs in addition to those of `eqx_fastjit`.
    """

    name: str
    group: str
    title: str
    contenders: tuple[str, ...]
    makers: Callable[[], Makers]
    size: Mapping[str, int] = field(default_factory=dict)
    modes: tuple[str, ...] = ("dispatch", "blocked")
    unit: str = "us"
    computes: str = ""
    max_rounds: int | None = None
    steps: int = 1
    cpu_devices: int = 1
    requires: tuple[str, ...] = ()

    @property
    def times_itself(self) -> bool:
        """Whether calls return `Measured`."""
        return "dispatch" not in self.modes

    @property
    def missing(self) -> tuple[str, ...]:
        """Those of the packages it needs that are not installed."""
        return tuple(name for name in self.requires if not _is_installed(name))

    def make(self, contender: str) -> Call:
        """Build the call of one contender."""
        return self.makers()[contender]()


_CASES: dict[str, Case] = {}


def add(
    name: str,
    makers: Callable[[], Makers],
    contenders: tuple[str, ...] = FUNCTION,
    **options: Any,
) -> None:
    """Add a case to the list. `options` are the other fields of `Case`."""
    _CASES[name] = Case(name=name, makers=makers, contenders=contenders, **options)


def case(**options: Any) -> Callable[[Callable[[], Makers]], Callable[[], Makers]]:
    """Add a case that is called as its function is."""

    def decorate(makers: Callable[[], Makers]) -> Callable[[], Makers]:
        add(makers.__name__, makers, **options)
        return makers

    return decorate


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def case_names() -> tuple[str, ...]:
    """Names of all cases."""
    return tuple(_CASES)


def case_info(name: str) -> Case:
    """The description of a case, before it is built.

    **Arguments:**

    - `name`: one of `case_names()`.

    **Returns:** a `Case`; its `group`, `title` and `size` say what it is.
    """
    return _CASES[name]


def group_names() -> tuple[str, ...]:
    """Names of all groups."""
    return tuple(dict.fromkeys(case.group for case in _CASES.values()))


def contenders_of(name: str) -> tuple[str, ...]:
    """The contenders of a case that can be built here.

    Contenders of flax are omitted without flax, and all contenders if the case needs a
    package that is not installed.
    """
    if _CASES[name].missing:
        return ()
    there = _CASES[name].contenders
    return tuple(c for c in there if c not in OF_FLAX or _is_installed("flax"))


def make_case(name: str, contenders: tuple[str, ...] | None = None) -> dict[str, Call]:
    """Build the contenders of a case.

    **Arguments:**

    - `name`: one of `case_names()`.
    - `contenders`: those to build. By default, all of `contenders_of(name)`.

    **Returns:** for each contender a function without arguments. It returns the result;
    for a case with its own `modes`, a `Measured`.
    """
    makers = _CASES[name].makers()
    chosen = contenders_of(name) if contenders is None else contenders
    return {contender: makers[contender]() for contender in chosen}
