"""Makes a sequence of calls with each contender, and compares the outcomes."""

import collections
import contextlib
import dataclasses
import os
import typing
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

import eqx_fastjit
from eqx_fastjit import _callables, _engine, _function
from tests.errors import is_error_if_let_out

from .callables import (
    make_callable,
    not_jitted,
    PARAMETERS,
    Parameters,
    RAW,
    SHARE_DEFAULTS,
    signature,
)
from .values import (
    Array,
    Description,
    forget_module_classes,
    is_array,
    parts,
    show_static,
    Tree,
)


# --- calls and sequences -------------------------------------------------------------


class Call(typing.NamedTuple):
    """A call, independent of how it is spelled."""

    # Data of the callable itself, for kinds in `WITH_DATA`
    data: Description | None
    # One for each named parameter; `None` means its default
    named: tuple[Description | None, ...]
    var_positional: tuple[Description, ...] = ()
    var_keyword: tuple[tuple[str, Description], ...] = ()


class Step(typing.NamedTuple):
    """A step of a sequence."""

    # Index of the call in the sequence
    call: int
    # Number of positional arguments that are passed by position
    by_position: int
    # Where the arguments come from: `"fresh"` (created for this step), `"same"`
    # (objects that were passed before) or `"changed"` (objects that were passed before,
    # and are modified in place)
    source: str


@dataclasses.dataclass(frozen=True)
class Sequence:
    """A callable, and calls of it."""

    kind: str
    parameters: str
    behaviour: str
    donate: str
    # Whether the engine's tables are made small, so that evictions occur
    eager: bool
    calls: tuple[Call, ...]
    steps: tuple[Step, ...]
    # The step before which all caches are cleared, if any
    clear_before: int | None = None


class Tally(collections.Counter[str]):
    """Counts what was tested."""


# --- spelling ------------------------------------------------------------------------


def _spell(
    parameters: Parameters, call: Call, by_position: int
) -> tuple[list[Description], dict[str, Description]]:
    args: list[Description] = []
    kwargs: dict[str, Description] = {}
    positional = [n for n in parameters.names if n not in parameters.keyword_only]
    values = dict(zip(parameters.names, call.named, strict=True))
    extra = call.var_positional
    if any(values[n] is None for n in positional):
        extra = ()  # they cannot be passed
    if extra:
        by_position = len(positional)
    by_position = max(by_position, len(parameters.positional_only))
    for i, name in enumerate(positional):
        if values[name] is None:
            by_position = min(by_position, i)
        elif i < by_position:
            args.append(values[name])
        else:
            kwargs[name] = values[name]
    args += extra
    for name in parameters.keyword_only:
        if values[name] is not None:
            kwargs[name] = values[name]
    for name, value in call.var_keyword:
        kwargs.setdefault(name, value)
    return args, kwargs


def _key(sequence: Sequence, call: Call, args: Any, kwargs: Any) -> Any:
    """Calls with equal keys share a trace."""
    parameters = PARAMETERS[sequence.parameters]
    data = call.data and call.data.key()
    args = [x.key() for x in args]
    kwargs = {name: x.key() for name, x in kwargs.items()}
    if sequence.kind in RAW:
        return data, tuple(args), tuple(sorted(kwargs.items()))
    named: dict[str, Any] = {}
    positional = [n for n in parameters.names if n not in parameters.keyword_only]
    for name in positional[: len(args)]:
        named[name] = args.pop(0)
    for name in parameters.names:
        if name in kwargs:
            named[name] = kwargs.pop(name)
        default = parameters.default(name)
        if name not in named:
            shares = sequence.kind in SHARE_DEFAULTS and not isinstance(default, Array)
            named[name] = default and default.key() if shares else "omitted"
    pairs = tuple(sorted(named.items(), key=lambda pair: pair[0]))
    rest = tuple(sorted(kwargs.items(), key=lambda pair: pair[0]))
    return data, pairs, tuple(args), rest


# --- arguments -----------------------------------------------------------------------


class Store:
    """Arguments that were passed before, by description.

    With `as_traced`, arrays are converted to what a function sees while it is traced.
    """

    def __init__(self, *, as_traced: bool = False) -> None:
        self.kept: dict[Description, Any] = {}
        self.as_traced = as_traced

    def make(self, description: Description, source: str, in_use: list[Any]) -> Any:
        """A value for a call. Values `in_use` by the same call are not changed."""
        if source == "fresh":
            return self.fresh(description)
        if source == "changed":
            for kept, value in self.kept.items():
                used = any(value is other for other in in_use)
                if _can_change(kept, description) and not used:
                    del self.kept[kept]
                    self.kept[description] = value
                    self.change(value, kept, description)
                    in_use.append(value)
                    return value
        if description not in self.kept:
            self.kept[description] = self.fresh(description)
        in_use.append(self.kept[description])
        return self.kept[description]

    def fresh(self, description: Description) -> Any:
        out = description.make(self.fresh)
        return _as_traced(out) if self.as_traced and is_array(out) else out

    def change(self, value: Any, old: Description, new: Description) -> None:
        """Change a value in place, from the description `old` to `new`."""
        assert isinstance(old, Tree)
        assert isinstance(new, Tree)
        made = []
        named = parts(value)
        assert named is not None
        pairs = zip(old.children, new.children, strict=True)
        n_dynamic = len(new.info.dynamic) if new.kind == "module" else len(new.children)
        for i, ((_, part), (a, b)) in enumerate(
            zip(_in_order(value), pairs, strict=True)
        ):
            if a == b:
                made.append(part)
            elif i < n_dynamic and _can_change(a, b):
                # A Module that is a static is not changed: ours rightly traces again.
                self.change(part, a, b)
                made.append(part)
            else:
                made.append(self.fresh(b))
        if new.kind == "list":
            value[:] = made
        elif new.kind == "dict":
            for key, child in zip(list(value), made, strict=True):
                value[key] = child
        else:
            names = [*new.info.dynamic, *new.info.static]
            for name, child in zip(names, made, strict=True):
                object.__setattr__(value, name, child)


def _in_order(value: Any) -> list[tuple[Any, Any]]:
    """The parts in the order of the description."""
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, list):
        return list(enumerate(value))
    return [(name, vars(value)[name]) for name in type(value).__dataclass_fields__]


def _can_change(old: Description, new: Description) -> bool:
    return (
        isinstance(old, Tree)
        and isinstance(new, Tree)
        and old != new
        and old.kind == new.kind
        and old.kind in ("list", "dict", "module")
        and old.info == new.info
        and len(old.children) == len(new.children)
    )


# --- contenders ----------------------------------------------------------------------

# The number of specializations that are kept for an `eager` sequence.
FEW_SPECIALIZATIONS = 8
_states: dict[tuple[str, bool], tuple[Any, Any]] = {}


@contextlib.contextmanager
def on_engine(engine: str, *, eager: bool = False) -> Iterator[None]:
    """A context in which the library uses this engine.

    With `eager`, only a few specializations are kept.
    """
    empty: Any = {}, weakref.WeakKeyDictionary()
    places: list[Any] = [(_engine, "_state"), (_callables, "_functions")]
    new = list(_states.setdefault((engine, eager), empty))
    if eager:
        places.append((_function, "_MAX_SPECIALIZATIONS"))
        new.append(FEW_SPECIALIZATIONS)
    old = [getattr(module, name) for module, name in places]
    for (module, name), value in zip(places, new, strict=True):
        setattr(module, name, value)
    before = os.environ.get("EQX_FASTJIT_ENGINE")
    os.environ["EQX_FASTJIT_ENGINE"] = engine
    try:
        assert _engine.engine() == engine
        yield
    finally:
        if before is None:
            del os.environ["EQX_FASTJIT_ENGINE"]
        else:
            os.environ["EQX_FASTJIT_ENGINE"] = before
        for (module, name), value in zip(places, old, strict=True):
            setattr(module, name, value)


class Contender:
    """One implementation of jit, and the callable jitted by it."""

    def __init__(self, sequence: Sequence, jit: Callable[..., Any], engine: str):
        self.sequence = sequence
        self.engine = engine
        self.traces = 0
        self.store = Store(as_traced=engine == "plain")
        with self.context():
            self.made = make_callable(
                sequence.kind,
                PARAMETERS[sequence.parameters],
                sequence.behaviour,
                jit,
                sequence.donate,
                self.traced,
            )

    def traced(self) -> None:
        self.traces += 1

    def context(self) -> contextlib.AbstractContextManager[None]:
        if self.engine in ("native", "python"):
            return on_engine(self.engine, eager=self.sequence.eager)
        return contextlib.nullcontext()

    def call(
        self,
        data: Description | None,
        args: list[Description],
        kwargs: dict[str, Description],
        source: str,
        store: Store,
    ) -> "Outcome":
        in_use: list[Any] = []

        def make(description: Description) -> Any:
            return store.make(description, source, in_use)

        given = [make(x) for x in args], {name: make(x) for name, x in kwargs.items()}
        with (
            self.context(),
            warnings.catch_warnings(record=True) as caught,
        ):
            warnings.simplefilter("always")
            traces = self.traces
            out = error = None
            try:
                fun = self.made.get(data, make)
                out = fun(*given[0], **given[1])
            except Exception as e:
                error = e
        arrays = _arrays(given)
        deleted = [
            (x.is_deleted(), x.size == 1) for x in arrays if isinstance(x, jax.Array)
        ]
        return Outcome(
            out,
            error,
            self.traces - traces,
            deleted,
            has_scalars=any(x.size == 1 for x in arrays),
            warned=any("donated" in str(w.message) for w in caught),
        )


class Outcome(typing.NamedTuple):
    """The outcome of a call."""

    out: Any
    error: Exception | None
    traces: int
    # For each JAX array in the arguments: whether it was deleted, and whether it has
    # the size of a scalar
    deleted: list[tuple[bool, bool]]
    # Whether the arguments contain such a scalar, of JAX or NumPy
    has_scalars: bool
    # Whether there was a warning about donated buffers
    warned: bool


def _as_traced(x: Any) -> Any:
    """An array as a function sees it while it is traced, apart from its values."""
    if x.dtype == jax.dtypes.float0 or isinstance(x, jax.Array):
        return x
    return jnp.asarray(x)


def _arrays(x: Any) -> list[Any]:
    """The arrays in an argument, including those in statics."""
    if is_array(x):
        return [x]
    return [array for _, part in parts(x) or () for array in _arrays(part)]


# --- comparison ----------------------------------------------------------------------


class Different(AssertionError):
    """Two results differ."""


def same(a: Any, b: Any, where: str = "result", *, plain: bool = False) -> None:
    """Raise `Different` unless two results are the same in every respect.

    With `plain`, `a` was computed without jit.
    """
    if is_array(a) or is_array(b):
        _same_arrays(a, b, where, plain)
        return
    if type(a) is not type(b):
        raise Different(f"{where}: {type(a)} and {type(b)}")
    parts_a, parts_b = parts(a), parts(b)
    if parts_a is None or parts_b is None:
        if show_static(a) != show_static(b):
            raise Different(f"{where}: {show_static(a)} and {show_static(b)}")
        return
    if not plain and isinstance(a, eqx.Module) and vars(a).keys() != vars(b).keys():
        raise Different(f"{where}: attributes {[*vars(a)]} and {[*vars(b)]}")
    list_a, list_b = list(parts_a), list(parts_b)
    names_a, names_b = ([name for name, _ in pairs] for pairs in (list_a, list_b))
    if names_a != names_b:
        raise Different(f"{where}: parts {names_a} and {names_b}")
    for (name, part_a), (_, part_b) in zip(list_a, list_b, strict=True):
        same(part_a, part_b, f"{where}.{name}", plain=plain)


def _same_arrays(a: Any, b: Any, where: str, plain: bool) -> None:
    if not is_array(a) or not is_array(b):
        raise Different(f"{where}: {type(a)} and {type(b)}")
    types = [
        (x.shape, x.dtype, getattr(x, "weak_type", None), isinstance(x, jax.Array))
        for x in (a, b)
    ]
    if plain and a.dtype == jax.dtypes.float0:
        types = [x[:2] for x in types]  # eager `float0` arrays are NumPy's
    if types[0] != types[1]:
        raise Different(f"{where}: {types[0]} and {types[1]}")
    if not plain and isinstance(a, jax.Array) and a.committed != b.committed:
        raise Different(f"{where}: committed and not")
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        a, b = jax.random.key_data(a), jax.random.key_data(b)
    if np.asarray(a).tobytes() != np.asarray(b).tobytes():
        raise Different(f"{where}: {a} and {b}")


def _same_outcomes(theirs: Outcome, ours: Outcome) -> None:
    if theirs.error is not None:
        expected = type(theirs.error)
        if is_error_if_let_out(theirs.error):
            expected = eqx.EquinoxRuntimeError
        if not isinstance(ours.error, expected):
            raise Different(f"{theirs.error!r} and {ours.error or ours.out!r}")
        return
    if ours.error is not None:
        raise Different(f"no error and {ours.error!r}") from ours.error
    same(theirs.out, ours.out)
    pairs = zip(theirs.deleted, ours.deleted, strict=True)
    for (deleted, is_scalar), (deleted_too, _) in pairs:
        # One of the listed differences: Equinox adds a scalar to the results, which may
        # reuse the memory of a donated scalar.
        if deleted != deleted_too and not (deleted and is_scalar):
            raise Different(f"deleted: {theirs.deleted} and {ours.deleted}")


# --- running -------------------------------------------------------------------------


class _Equinox:
    """`equinox.filter_jit`, prevented from confusing statics.

    It compares statics by `==` alone, which is one of the listed differences. So each
    of the keys that it would confuse has its own copy of the function.
    """

    def __init__(self, sequence: Sequence):
        self.sequence = sequence
        self.copies: list[Contender] = []
        self.variants: dict[Any, list[Any]] = {}
        self.store = Store()

    def copy_for(self, key: Any, coarse: Any) -> Contender:
        variants = self.variants.setdefault(coarse, [])
        if key not in variants:
            variants.append(key)
        i = variants.index(key)
        while i >= len(self.copies):
            self.copies.append(Contender(self.sequence, eqx.filter_jit, "equinox"))
        return self.copies[i]


def _coarse(sequence: Sequence, call: Call, args: Any, kwargs: Any) -> Any:
    """What Equinox compares: the structure, and statics by `==`."""
    store = Store()
    if sequence.kind not in RAW:
        bound = signature(PARAMETERS[sequence.parameters]).bind(*args, **kwargs)
        args, kwargs = bound.args, bound.kwargs
    data = None if call.data is None else store.fresh(call.data)
    tree = (
        data,
        [store.fresh(x) for x in args],
        {name: store.fresh(x) for name, x in kwargs.items()},
    )
    try:
        leaves, treedef = jtu.tree_flatten(tree)
        out = tuple([None if is_array(x) else x for x in leaves]), treedef
        hash(out)
    except (TypeError, ValueError):
        return None  # no contender accepts it
    return out


def run(sequence: Sequence, tally: Tally) -> None:
    """Run a sequence. Raises `Different` if any outcomes differ that should not."""
    forget_module_classes()
    # Callable pytrees of one class share a table with those of earlier sequences. If
    # that table is small, each sequence starts with an empty one.
    for engine in ("native", "python"):
        _states.pop((engine, True), None)
    plain = Contender(sequence, not_jitted, "plain")
    equinox = _Equinox(sequence)
    ours = [
        Contender(sequence, eqx_fastjit.filter_jit, engine)
        for engine in ("native", "python")
    ]
    traced: set[Any] = set()
    met: set[Any] = set()
    parameters = PARAMETERS[sequence.parameters]
    tally["sequences"] += 1
    for feature in ("kind", "parameters", "behaviour", "donate", "eager"):
        tally[f"{feature}: {getattr(sequence, feature)}"] += 1
    shared = [Store(as_traced=True), *[Store()] * 3]
    for number, step in enumerate(sequence.steps):
        if number == sequence.clear_before:
            eqx.clear_caches()
            jax.clear_caches()
            for contender in ours:
                with contender.context():
                    _function.clear_all()
            traced.clear()
            met.clear()
            tally["clearings"] += 1
        call = sequence.calls[step.call % len(sequence.calls)]
        args, kwargs = _spell(parameters, call, step.by_position)
        key = _key(sequence, call, args, kwargs)
        source = step.source if sequence.donate == "none" else "fresh"
        outcomes = []
        coarse = _coarse(sequence, call, args, kwargs)
        contenders = [plain, equinox.copy_for(key, coarse), *ours]
        # Each contender has its own copies of objects that are changed in place.
        stores = [plain.store, equinox.store, *[c.store for c in ours]]
        if source != "changed":
            stores = shared
        for contender, store in zip(contenders, stores, strict=True):
            outcomes.append(contender.call(call.data, args, kwargs, source, store))
        if _is_stale(outcomes[0], outcomes[1]):
            # Equinox confused two statics after all, for example NaNs, which are equal
            # if they are one object. On a fresh function it has to agree.
            tally["stale traces of Equinox"] += 1
            first = Contender(sequence, eqx.filter_jit, "equinox")
            again = "fresh" if source == "fresh" else "same"
            outcomes[1] = first.call(call.data, args, kwargs, again, stores[1])
        tally["calls"] += 1
        tally[f"source: {source}"] += 1
        where = f"step {number} ({step})"
        try:
            many = len(traced | met) > FEW_SPECIALIZATIONS
            drops = sequence.eager and many
            _check_step(outcomes, key, traced, met, tally, drops=drops)
        except Different as e:
            raise Different(f"{where}: {e}") from e


def _is_stale(plain: Outcome, theirs: Outcome) -> bool:
    """Whether Equinox's result differs from that of the plain function."""
    if theirs.error is not None or plain.error is not None:
        return False
    try:
        same(plain.out, theirs.out, plain=True)
    except Different:
        return True
    return False


def too_often_stale(tally: Tally) -> bool:
    """Whether Equinox needed a fresh function more often than plausible.

    (In a long run it did in 30 of 101,608 calls.)
    """
    return tally["stale traces of Equinox"] > tally["calls"] / 100


def _check_step(
    outcomes: list[Outcome],
    key: Any,
    traced: set[Any],
    met: set[Any],
    tally: Tally,
    *,
    drops: bool,
) -> None:
    """Compare the outcomes of one call.

    `traced` are the keys that were traced, and `met` those of calls that failed. If the
    sequence has more keys than are kept, `drops` is true, and any may be traced again.
    """
    plain, theirs, *ours = outcomes
    if theirs.error is None:
        if plain.error is not None:
            raise Different(f"the plain function: {plain.error!r}")
        same(plain.out, theirs.out, "plain and Equinox", plain=True)
        for outcome, engine in zip(ours, ("native", "python"), strict=True):
            try:
                _same_outcomes(theirs, outcome)
                same(plain.out, outcome.out, "plain and ours", plain=True)
                # As above, Equinox's extra scalar may reuse the memory of a donated
                # one.
                if outcome.warned and not (theirs.warned or theirs.has_scalars):
                    raise Different("a warning of donated buffers")
                # A call that failed at run time may have been traced before.
                fails = key in met and outcome.traces == 0
                dropped = drops and outcome.traces == 1
                if outcome.traces != (key not in traced) and not fails | dropped:
                    raise Different(
                        f"{outcome.traces} traces, and it "
                        f"{'was' if key in traced else 'was not'} traced before"
                    )
            except Different as e:
                raise Different(f"Equinox and {engine}: {e}") from e
        tally["traces"] += key not in traced
        traced.add(key)
        tally["deleted buffers"] += sum([d for d, _ in theirs.deleted])
        return
    tally["errors"] += 1
    tally[f"error: {type(theirs.error).__name__}"] += 1
    for outcome, engine in zip(ours, ("native", "python"), strict=True):
        try:
            _same_outcomes(theirs, outcome)
            # Ours may reuse the trace of an earlier call where Equinox traces again.
            dropped = drops and outcome.traces == 1
            shares = key in met and outcome.traces == 0
            if outcome.traces != theirs.traces and not shares | dropped:
                raise Different(
                    f"{theirs.traces} traces and {outcome.traces} in a failing call"
                )
        except Different as e:
            raise Different(f"Equinox and {engine}: {e}") from e
    met.add(key)


def keep_programs(folder: str | None) -> None:
    """Make JAX keep compiled programs in a folder, or in none.

    Most programs of a run are alike, and a compilation takes 50 ms.
    """
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0 if folder else 1)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1 if folder else 0)
    compilation_cache.reset_cache()
