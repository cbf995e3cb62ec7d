"""How jaxlib's dispatcher takes arguments apart and puts results together.

The dispatcher takes its pytree registry as an argument, so it is given two of our own.

*Arguments* are flattened by a registry in which every static leaf is a node without
children, whose node data says which static it is, and every Module flattens by the
quickest means that is safe. The node data is what C++ compares from call to call, so it
must differ wherever the token (`_statics.py`) differs.

*Results* are rebuilt by a registry with one kind of node of ours, which calls a
function on its children.

A type is registered when it is first met, on the slow path; until then the dispatcher
sees a leaf that it cannot handle, and asks the slow path again.
"""

import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any, TYPE_CHECKING

from jax.core import Tracer

from ._compat import Cpp
from ._generate import (
    generate_flatten,
    generate_rebuild,
    is_module_class,
    NotGeneratable,
)
from ._statics import is_identity_type, Token, token
from ._structure import ARRAY_TYPES, DYNAMIC, ResultInfo, Structure, walk


# Generating code costs 0.3 ms for a small model and 10 ms for a large one: only worth
# it for what is called again and again.
GENERATE_AFTER = 16
# Generated functions kept for one class, tried one after the other (0.15 us each).
_MAX_GENERATED = 6
# Entries in a table of interned statics before it is emptied. What is lost is only
# speed: equal tokens are found again on the slow path.
_MAX_INTERNED = 8192
# Strings longer than this are kept only until `eqx.clear_caches()`.
_MAX_KEPT_STRING = 1024

# Entries of the dispatcher's cache, over all functions. (JAX uses the same number.)
_CACHE_SIZE = 8192

_NATIVE = frozenset({tuple, list, dict, type(None)})

Flattened = tuple[tuple[Any, ...], Any]


class Key:
    """Node data that stands for a token. A token has one key, as long as it is kept.

    Keys compare by identity, which costs C++ 0.02 us; comparing tokens costs 0.3. And
    it runs no Python: in the middle of a look-up in the dispatcher's cache that would
    let other threads change the cache, and jaxlib 0.10 then crashes.
    """

    __slots__ = ("seen",)

    def __init__(self) -> None:
        self.seen = 0


class _Markers:
    """Nodes without content that differ in their hash.

    jaxlib's hash of a tree structure leaves node data out, so a function called with
    many different statics would put them all into one bucket and search it one by one:
    4.6 us a call with one static, 12.9 with 400. Two markers as the children of a
    static's node are two digits of its number, and do enter the hash. The first few
    statics go without: a marker costs 0.05 us.
    """

    free = 4
    base = 48

    def __init__(self, registry: Any):
        digits = []
        for _ in range(self.base):
            cls = type("Marker", (), {"__slots__": ()})
            # A dataclass node without fields: flattened in C++ alone, and hashed by
            # the address of its registration.
            registry.register_dataclass_node(cls, [], [])
            digits.append(cls())
        self.digits = tuple(digits)

    def get(self, n: int) -> tuple[Any, ...]:
        """Children for the `n`-th static of a kind."""
        if n < self.free:
            return ()
        high, low = divmod(n, self.base)
        return self.digits[high % self.base], self.digits[low]


class _Interned(dict[Any, Flattened]):
    """From a static value to its flattened form.

    Registered as `table.__getitem__`, so that the dispatcher flattens an `int` or `str`
    that it knows without running any Python (0.04 us; a Python function costs 0.1).
    """

    def __init__(self, markers: _Markers, tokens: "_InternedTokens"):
        super().__init__()
        self.markers = markers
        self.tokens = tokens

    def __missing__(self, value: Any) -> Flattened:
        if not self.may_keep(value):
            return self.tokens[token(value)]
        if len(self) >= _MAX_INTERNED:
            self.clear()
        return self.setdefault(value, (self.markers.get(len(self)), Key()))

    def may_keep(self, value: Any) -> bool:
        return not isinstance(value, str | bytes) or len(value) <= _MAX_KEPT_STRING


class _InternedNumbers(_Interned):
    """The same for `float` and `complex`, where `==` is not enough."""

    def may_keep(self, value: Any) -> bool:
        # Zeros have a sign that `==` does not see, and a NaN is never found again.
        parts = (value.real, value.imag) if isinstance(value, complex) else (value,)
        return all(x == x and x != 0 for x in parts)


class _InternedTokens(dict[Token, Flattened]):
    """From a token to the markers and the `Key` for it."""

    def __init__(self, markers: _Markers):
        super().__init__()
        self.markers = markers

    def __missing__(self, tok: Token) -> Flattened:
        if len(self) >= _MAX_INTERNED:
            self.clear()
        return self.setdefault(tok, (self.markers.get(len(self)), Key()))


# Not written out in the class, where type checkers would take it for data.
_CALL_SLOT = ("__call__",)


class _Swappable:
    """A callable whose code can be replaced while C++ holds on to it.

    `__call__` is a slot: calling the object calls what is in the slot, without a Python
    frame in between (0.03 us; a `__call__` method that forwards costs 0.15).
    """

    __slots__ = _CALL_SLOT

    if TYPE_CHECKING:

        def __call__(self, x: Any, /) -> Any: ...


class _ModuleFlatten(_Swappable):
    """Flattens the instances of one Module class.

    Begins with Equinox's own function and the token of its static data. A structure
    that is seen often gets a generated function that handles it whole, including the
    modules and containers inside, and leaves anything it does not expect to the next
    function in the chain, of which the last is Equinox's.
    """

    __slots__ = ("generated", "lock", "nodes", "patience")

    def __init__(self, nodes: "Nodes"):
        self.nodes = nodes
        self.generated: list[Callable[[Any], Flattened]] = []
        self.patience = GENERATE_AFTER
        self.lock = threading.Lock()
        self.__call__ = self.general

    def general(self, module: Any) -> Flattened:
        children, aux = self.nodes.flatten_one_level(module)
        marker, key = self.nodes.tokens[token(aux)]
        key.seen += 1
        if key.seen >= self.patience:
            key.seen = 0
            self.generate(module)
        return (*children, *marker), key

    def generate(self, module: Any) -> None:
        # Another thread may be at it. It is only an optimisation: do not wait.
        if not self.lock.acquire(blocking=False):
            return
        try:
            if len(self.generated) >= _MAX_GENERATED:
                # More structures than we keep. Ever rarer, so that a program that goes
                # through thousands of them does not spend its time generating code.
                del self.generated[0]
                self.patience *= 2
            nodes = self.nodes
            flatten = generate_flatten(
                module, nodes.is_static, nodes.cpp.node_entries, Key()
            )
            self.generated.append(flatten)
        except NotGeneratable:
            self.patience *= 2
        else:
            self.link()
        finally:
            self.lock.release()

    def link(self) -> None:
        """Chain the generated functions, oldest first, and end with the general one."""
        otherwise: Callable[[Any], Flattened] = self.general
        for flatten in reversed(self.generated):
            flatten.__globals__["otherwise"] = otherwise
            otherwise = flatten
        self.__call__ = otherwise


class _Rebuild(_Swappable):
    """Makes a result out of its arrays.

    Begins with JAX's own unflatten; code is generated for a result that is made often.
    """

    __slots__ = ("calls", "info", "nodes")

    def __init__(self, info: ResultInfo, nodes: "Nodes"):
        self.info = info
        self.nodes = nodes
        self.calls = 0
        self.__call__ = self.general

    def general(self, arrays: Sequence[Any]) -> Any:
        out = self.info.rebuild(arrays)
        self.calls += 1
        if self.calls == GENERATE_AFTER and self.info.template is None:
            cpp = self.nodes.cpp
            try:
                self.__call__ = generate_rebuild(
                    out, arrays, self.nodes.flatten_one_level, cpp.node_entries
                )
            except NotGeneratable:
                self.__call__ = self.info.rebuild
        return out


class _WaitAndRebuild:
    """Hands out a result once the device is done with it.

    A host callback (`eqx.error_if`, `jax.pure_callback`) may raise after the call was
    dispatched, and the user expects that at the call; or the arguments were NumPy's,
    which may be written to after it. This runs inside the dispatcher, so such calls
    stay on the fast path.
    """

    __slots__ = ("treedef",)

    def __init__(self, treedef: Any):
        self.treedef = treedef

    def __call__(self, arrays: tuple[Any, ...]) -> Any:
        # All results of one execution fail together.
        arrays[0].block_until_ready()
        return self.treedef.unflatten(arrays)


class _Result:
    """Stands in for a result while its structure is made for the dispatcher."""

    __slots__ = ("arrays", "rebuild")

    def __init__(self, rebuild: Callable[[Any], Any], arrays: Sequence[Any]):
        self.rebuild = rebuild
        self.arrays = arrays


class _Seen(threading.local):
    """Number types that this thread has met as static leaves."""

    def __init__(self) -> None:
        self.numbers: set[type] = {int, bool, float, complex}


def _no_rebuild(key: Any, children: Any) -> Any:
    raise AssertionError("arguments are never rebuilt by the dispatcher")


class Nodes:
    """The two registries, and what has been registered in them."""

    def __init__(self, cpp: Cpp):
        self.cpp = cpp
        self.flatten_one_level = cpp.default_registry.flatten_one_level
        self.lock = threading.RLock()
        native = {
            f"enable_{kind}": True
            for kind in ("none", "tuple", "namedtuple", "list", "dict")
        }
        self.arguments = cpp.make_registry(**native)
        self.results = cpp.make_registry(**native)
        self.results.register_node(
            _Result, lambda result: (result.arrays, result.rebuild), operator.call
        )
        self.cache = cpp.make_cache(capacity=_CACHE_SIZE)
        self.markers = _Markers(self.arguments)
        self.tokens = _InternedTokens(self.markers)
        # For an object whose class became a node after it was met as a static. Our
        # registry cannot learn that; a leaf that the dispatcher cannot handle leaves
        # the call to the slow path.
        self.late: Flattened = ((object(),), Key())
        self.known: set[type] = set(_NATIVE)
        self.registered = 0
        # Array types that the dispatcher must see through, such as typed PRNG keys.
        self.expanded: set[type] = set()
        self.seen = _Seen()
        for cls in (int, bool, str, bytes):
            self._register(cls, _Interned(self.markers, self.tokens).__getitem__)
        for cls in (float, complex):
            table = _InternedNumbers(self.markers, self.tokens)
            self._register(cls, table.__getitem__)

    def _register(self, cls: type, flatten: Callable[[Any], Flattened]) -> None:
        self.arguments.register_node(cls, flatten, _no_rebuild)
        self.registered += 1
        self.known.add(cls)

    def is_static(self, x: Any) -> bool:
        """Whether `x` is a leaf to JAX and not an array."""
        return self.flatten_one_level(x) is None and not isinstance(x, ARRAY_TYPES)

    def clear(self) -> None:
        """Let go of static data. Where it is still in use, it is met again."""
        self.tokens.clear()

    # --- arguments ---

    def meet(self, structure: Structure, arrays: Sequence[Any]) -> bool:
        """Register every type in a call that is not known yet.

        Returns whether the dispatcher may have taken the call apart without knowing one
        of them.
        """
        leaves = [x for x in structure.leaves if x is not DYNAMIC]
        unknown_leaves = [x for x in leaves if type(x) not in self.known]
        unknown_arrays = [x for x in arrays if type(x) not in self.known]
        n_registered = self.registered
        with self.lock:  # a registry refuses to register a type twice
            for leaf in unknown_leaves:
                if type(leaf) not in self.known:
                    self._meet_static(type(leaf))
            for array in unknown_arrays:
                if type(array) not in self.known:
                    self._meet_array(array)
            for data, _ in walk(structure.treedef):
                if data is None:
                    continue
                cls = data[0]
                if cls not in self.known and cls in self.cpp.node_entries:
                    self._meet_node(cls)
            fresh = self.registered != n_registered
        # The dispatcher takes an unknown subclass of a number for an array, as
        # `jax.jit` would (an `IntEnum`, say). Another thread may have made it known
        # between then and now, so trust only what this thread has seen before.
        numbers = {type(x) for x in leaves if isinstance(x, int | float | complex)}
        if not numbers <= self.seen.numbers:
            self.seen.numbers |= numbers
            fresh = True
        return fresh

    def _meet_static(self, cls: type) -> None:
        markers, late = self.markers, self.late
        # Whether `cls` has become a node since is asked each time: 0.03 us.
        node_entries = self.cpp.node_entries
        if is_identity_type(cls):
            # The object itself is the node data: C++ compares it by identity. Its
            # address only spreads the hash.
            def flatten(x: Any) -> Flattened:
                return late if cls in node_entries else (markers.get(id(x) >> 4), x)
        else:
            tokens = self.tokens

            def flatten(x: Any) -> Flattened:
                return late if cls in node_entries else tokens[token(x)]

        self._register(cls, flatten)

    def _meet_node(self, cls: type) -> None:
        if is_module_class(cls):
            self._register(cls, _ModuleFlatten(self))
            return
        self._register(cls, self._by_token(self.flatten_one_level))

    def _by_token(self, flatten_one_level: Callable[[Any], Any]) -> Callable[..., Any]:
        """Flatten as JAX does, with the key of its token in place of static data."""
        tokens = self.tokens

        def flatten(x: Any) -> Flattened:
            children, aux = flatten_one_level(x)
            marker, key = tokens[token(aux)]
            return (*children, *marker), key

        return flatten

    def _meet_array(self, array: Any) -> None:
        cls = type(array)
        self.known.add(cls)
        registry = self.cpp.dispatch_registry
        one_level = registry.flatten_one_level(array)
        if isinstance(array, Tracer) or one_level is None:
            return
        flatten = registry.flatten_one_level
        # For a key this is a tuple of functions, which C++ compares without running any
        # Python, as under `jax.jit`. Its token costs 8 us, of 20 for the call.
        if not isinstance(one_level[1], tuple):
            flatten = self._by_token(flatten)
        self._register(cls, flatten)
        self.results.register_node(
            cls,
            registry.flatten,
            lambda treedef, children: treedef.unflatten(children),
        )
        self.expanded.add(cls)

    def expand(self, arrays: Sequence[Any]) -> list[Any]:
        """The arrays as the dispatcher sees them: typed keys as their words."""
        out = []
        for x in arrays:
            if type(x) in self.expanded:
                out.extend(self.cpp.dispatch_registry.flatten(x)[0])
            else:
                out.append(x)
        return out

    def agrees(self, args: tuple[Any, ...], arrays: Sequence[Any]) -> bool:
        """Whether the dispatcher would find just these arrays in this order.

        If it does not (a flatten function that makes new arrays, a type that was a leaf
        when first met and a node later) the call is left to the slow path.
        """
        seen = self.arguments.flatten(args)[0]
        expected = self.expand(arrays)
        return len(seen) == len(expected) and all(map(operator.is_, seen, expected))

    # --- results ---

    def result_treedef(
        self, out: Any, arrays: Sequence[Any], info: ResultInfo, *, waits: bool
    ) -> Any:
        """The structure from which the dispatcher makes a result like `out`.

        With `waits`, once the device is done. Returns `None` if it cannot.
        """
        with self.lock:
            for x in arrays:
                if type(x) not in self.known:
                    self._meet_array(x)
        native = all(x is DYNAMIC for x in info.structure.leaves) and _is_native(
            info.structure.treedef
        )
        tree = out if native else _Result(_Rebuild(info, self), arrays)
        leaves, treedef = self.results.flatten(tree)
        if waits and arrays:
            leaves, treedef = self.results.flatten(
                _Result(_WaitAndRebuild(treedef), leaves)
            )
        expected = self.expand(arrays)
        if len(leaves) != len(expected) or not all(map(operator.is_, leaves, expected)):
            return None
        return treedef


def _is_native(treedef: Any) -> bool:
    """Whether a tree is made of containers that jaxlib rebuilds by itself."""
    return all(data is None or data[0] in _NATIVE for data, _ in walk(treedef))
