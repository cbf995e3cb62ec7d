"""The sequences of one seed, run in a subprocess: part of the long run."""

import os
import tempfile
import traceback
from typing import Any


# silence the log of buffers donated twice
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import hypothesis
import jax

from .harness import Different, keep_programs, run, Tally
from .strategies import sequences


def prepare() -> None:
    """Set up a worker process."""
    jax.config.update("jax_num_cpu_devices", 8)
    keep_programs(tempfile.mkdtemp(prefix="differential"))


def run_batch(seed: int, size: int) -> tuple[Tally, str | None]:
    """Run the sequences of one seed, up to the first that differs."""
    tally = Tally()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=size,
        database=None,
        deadline=None,
        # Failing sequences are not shrunk, which can take an hour;
        # `tests/test_differential.py` does that.
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(sequences())
    def batch(sequence: Any) -> None:
        run(sequence, tally)

    error = None
    try:
        batch()
    except Exception as e:
        error = f"{type(e).__name__}: {e}"[:2000]
        if not isinstance(e, Different):
            traceback.print_tb(e.__traceback__)
    jax.clear_caches()  # otherwise memory would grow with every sequence
    return tally, error
