"""`python -m tests.differential --cases 100000 --workers 2`: the long run.

Runs random sequences of calls (see the package) until the number of calls is reached,
each with `equinox.filter_jit`, the plain function, and ours on both engines. The exit
code is 1 if any outcomes differ.
"""

import argparse
import itertools
import multiprocessing
import pathlib
import time
from concurrent import futures
from typing import Any

from tests.records import stamp, write

from .batches import prepare, run_batch
from .harness import Tally, too_often_stale


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.differential", description=__doc__
    )
    parser.add_argument("--cases", type=int, default=100_000, help="number of calls")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first batch")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--batch", type=int, default=25, help="sequences per batch")
    parser.add_argument("--json", type=pathlib.Path, help="write the result here")
    return parser.parse_args()


def main() -> int:
    options = _parse()
    given = ("cases", "workers", "seed", "batch")
    words = [f"--{name} {getattr(options, name)}" for name in given]
    tally = Tally()
    failures: list[dict[str, Any]] = []
    seeds = itertools.count(options.seed)
    n_done = 0
    start = time.perf_counter()
    pool = futures.ProcessPoolExecutor(
        options.workers, multiprocessing.get_context("spawn"), prepare
    )
    pending: dict[Any, int] = {}
    with pool:
        while pending or tally["calls"] < options.cases:
            while len(pending) < options.workers and tally["calls"] < options.cases:
                seed = next(seeds)
                pending[pool.submit(run_batch, seed, options.batch)] = seed
            for done in futures.wait(pending, None, futures.FIRST_COMPLETED).done:
                seed = pending.pop(done)
                found, error = done.result()
                tally.update(found)
                n_done += 1
                if error is not None:
                    failures.append({"seed": seed, "error": error})
                    print(f"seed {seed}: {error}", flush=True)
            seconds = time.perf_counter() - start
            print(
                f"{tally['calls']} calls, {tally['traces']} traces, {tally['errors']} "
                f"errors as expected, {len(failures)} seeds with a difference, "
                f"{seconds:.0f} s",
                flush=True,
            )
            report = {
                "command": " ".join(["python -m tests.differential", *words]),
                "what": "calls compared with equinox.filter_jit and the plain function",
                "calls": tally["calls"],
                "sequences": tally["sequences"],
                "first_seed": options.seed,
                "seeds": n_done,
                "sequences_per_seed": options.batch,
                "failures": failures,
                "counts": dict(sorted(tally.items())),
                "seconds": round(seconds),
                **stamp("hypothesis"),
            }
            if options.json is not None:
                write(options.json, report)
    if too_often_stale(tally):
        print("Equinox was asked afresh too often")
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
