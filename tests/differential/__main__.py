"""`python -m tests.differential --cases 100000`: the long run.

Runs sequences of calls (see the package) until so many calls have been made, each
under `equinox.filter_jit`, the plain function, and ours on both routes, and writes
what was run to a JSON file. The exit code is 1 if anything differed.
"""

import argparse
import os
import pathlib
import tempfile
import time
import traceback
from typing import Any


os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # donating a buffer twice is logged
import hypothesis
import jax

from tests.records import stamp, write

from .harness import Different, keep_programs, run, Tally
from .strategies import sequences


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=__doc__
    )
    parser.add_argument("--cases", type=int, default=100_000, help="how many calls")
    parser.add_argument("--seed", type=int, default=0, help="of the first batch")
    parser.add_argument("--batch", type=int, default=25, help="sequences per seed")
    parser.add_argument(
        "--out", type=pathlib.Path, default="benchmarks/results/differential.json"
    )
    return parser.parse_args()


def main() -> int:
    options = _parse()
    jax.config.update("jax_num_cpu_devices", 8)
    keep_programs(tempfile.mkdtemp(prefix="differential"))
    tally = Tally()
    failures: list[dict[str, Any]] = []
    seed = options.seed
    start = time.perf_counter()

    def record() -> None:
        report = {
            "what": "calls compared with equinox.filter_jit and the plain function",
            "calls": tally["calls"],
            "sequences": tally["sequences"],
            "first_seed": options.seed,
            "seeds": seed - options.seed,
            "sequences_per_seed": options.batch,
            "failures": failures,
            "counts": dict(sorted(tally.items())),
            "seconds": round(time.perf_counter() - start),
            **stamp("hypothesis"),
        }
        write(options.out, report)

    while tally["calls"] < options.cases:

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=options.batch,
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

        try:
            batch()
        except Exception as e:
            text = f"{type(e).__name__}: {e}"
            failures.append({"seed": seed, "error": text[:2000]})
            print(f"seed {seed}: {text[:2000]}", flush=True)
            if not isinstance(e, Different):
                traceback.print_tb(e.__traceback__)
        seed += 1
        jax.clear_caches()  # or memory would grow with every sequence
        print(
            f"{tally['calls']} calls, {tally['traces']} traces, {tally['errors']} "
            f"errors as expected, {len(failures)} seeds with a difference, "
            f"{time.perf_counter() - start:.0f} s",
            flush=True,
        )
        record()
    record()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
