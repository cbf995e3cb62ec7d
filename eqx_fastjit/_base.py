"""The base class of jitted functions, in C or in Python."""

from typing import Any, TYPE_CHECKING

from ._compat import hide_from_tracebacks


try:
    from . import _native  # pyright: ignore[reportAttributeAccessIssue]
except ImportError:  # not built
    _native: Any = None

hide_from_tracebacks(__file__)


class _PythonBase:
    """The Python version of `_native.Callable`."""

    __slots__ = ("_python_call",)

    def _prepare(self, python_call: Any, **_: Any) -> None:
        object.__setattr__(self, "_python_call", python_call)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        return self._python_call(*args, **kwargs)


if TYPE_CHECKING:
    Base = _PythonBase
else:
    Base = _PythonBase if _native is None else _native.Callable


def call_directly(cls: type) -> None:
    """Have calls of a subclass go to the C of its base, if that is what it is.

    Those of methods as well: nothing is bound to the instance in between.
    """
    if _native is not None:
        _native.call_directly(cls)


class PythonCall:
    """A call on the Python engine."""

    __slots__ = ("wrapped",)

    def __init__(self, wrapped: Any):
        # Weak: the wrapped function has this.
        self.wrapped = wrapped

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        wrapped = self.wrapped()
        function = wrapped._function
        values = wrapped._bind(*args, **kwargs)
        try:
            return function.call(values)
        except BaseException as e:
            better = function.translate(e)
            if better is None:
                raise
            raise better from None
