"""The sequences of one seed, in a process of their own: a part of the long run."""

import os
import tempfile
import traceback
from typing import Any


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # donating a buffer twice is logged
import hypothesis
import jax

from .harness import Different, keep_programs, run, Tally
from .strategies import sequences


def prepare() -> None:
    """In each worker, before its first batch."""
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
        # The sequence that differs is printed as it is: making it smaller can take
        # an hour. `tests/test_differential.py` does.
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
    jax.clear_caches()  # or memory would grow with every sequence
    return tally, error
