"""`eqx-fastjit profile`: where Python was in a program, and whether dispatch matters.

Nothing here imports JAX before the program does.
"""

from typing import Any

from ._words import wrapped


# Seconds between two samples of the program, which may run for long.
_INTERVAL = 0.01


class ProgramProfile:
    """Samples a program that is run in this thread, and what the device does then."""

    def __init__(self) -> None:
        from pyinstrument import Profiler

        # Of a program that uses the engine.
        self._device: Any = None
        self._profiler = Profiler(interval=_INTERVAL, async_mode="disabled")
        self._profiler.start()

    def begin(self) -> None:
        """The program uses the engine from now on."""
        from .record._device import Device

        self._device = Device().__enter__()

    def report(self) -> str:
        """Where Python was in the program, which is over, and what the device did."""
        session = self._profiler.stop()
        from ._profile import outside_of_jit, tree_text

        texts = [outside_of_jit(session)]
        if self._device is not None:
            self._device.close()
            texts.append(str(self._device.use() or ""))
        last = ["\n".join(wrapped(text)) for text in texts if text]
        return "\n\n".join([tree_text(session), *last])
