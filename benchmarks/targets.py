"""Compares the engine's figures on this machine with their targets.

    python -m benchmarks.targets [--rounds 25] [--json FILE] [--only TEXT]

Ratios of calls are medians over interleaved rounds in one process, given with the range
over three such processes. First calls alternate in one process, each of a new function.
Imports are timed in pairs of fresh processes. Run nothing else meanwhile.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import eqx_fastjit
from eqx_fastjit.bench._results import new_results, short_commit


# case, rival, largest ratio
CALLS = [
    ("identity", "flat", 1.12),
    ("identity", "jit", 0.9),
    ("identity", "eqx", 0.4),
    ("mlp_32", "flat", 1.15),
    ("mlp_32", "jit", 0.9),
    ("mlp_32", "eqx", 0.4),
    ("adam_19_leaves", "flat", 1.1),
    ("adam_19_leaves", "jit", 0.9),
    ("adam_103_leaves", "flat", 1.1),
    ("mlp_8_100_layers", "flat", 1.2),
    ("method", "eqx", 0.4),
    ("error_if", "eqx", 0.4),
    ("static_arguments", "jit", 1.05),
    ("typed_key", "jit", 1.05),
    ("numpy_inputs", "jit", 1.05),
    ("after_1000_signatures", "alone", 1.2),
    ("wrap_anew", "eqx", 0.15),
]

_CALLS = """
import json, statistics, sys
from eqx_fastjit.bench import make_case, measure
rounds = int(sys.argv[2])
def run(calls):
    steps = measure(calls, rounds)
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return {name: t.dispatch for name, t in stop.value.items()}
name = sys.argv[1]
if name == "after_1000_signatures":
    import jax.numpy as jnp, eqx_fastjit
    x = jnp.ones(3)
    many, one = (eqx_fastjit.filter_jit(lambda x, n: x * n) for _ in range(2))
    for n in range(1001):
        many(x, n)
    times = run({"ours": lambda: many(x, 0), "alone": lambda: one(x, 0)})
elif name == "signatures_in_turn":
    names = ("jit", "ours")
    many, one = make_case("statics_1000", names), make_case("statics_1", names)
    times = run({"ours": many["ours"], "one": one["ours"],
                 "jit": many["jit"], "jit_one": one["jit"]})
else:
    times = run(make_case(name))
print(json.dumps(times))
"""

_FIRST_CALL = """
import statistics, sys, time
import equinox as eqx, jax, jax.numpy as jnp, eqx_fastjit
model = eqx.nn.MLP(8, 8, 8, 3, key=jax.random.key(0))
x = jnp.ones((4, 8))
def first_call(jit, i):
    def loss(model, x):
        return jnp.mean(jax.vmap(model)(x) ** 2) + i
    def step(model, x):
        value, grads = eqx.filter_value_and_grad(loss)(model, x)
        return eqx.apply_updates(model, grads), value
    start = time.perf_counter()
    jax.block_until_ready(jit(step)(model, x)[1])
    return time.perf_counter() - start
pair = [eqx.filter_jit, eqx_fastjit.filter_jit]
times = [[], []]
for i in range(int(sys.argv[1])):
    order = (0, 1) if i % 2 else (1, 0)
    for k in order:
        times[k].append(first_call(pair[k], i))
ratios = [b / a for a, b in zip(*times)][2:]
print(statistics.median(ratios))
"""

# Collects the garbage of importing Equinox first.
_IMPORT = """
import gc, time, equinox
gc.collect()
start = time.perf_counter()
import eqx_fastjit
eqx_fastjit.filter_jit
print((time.perf_counter() - start) * 1e3)
"""

_MEMORY = """
import gc, os
import equinox as eqx, jax, jax.numpy as jnp, eqx_fastjit
def rss():
    gc.collect()
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
model = eqx.nn.MLP(2, 2, 2, 1, key=jax.random.key(0))
f = eqx_fastjit.filter_jit(lambda m, x, n: (m(x), n))
x = jnp.ones(2)
for _ in range(50_000):
    f(model, x, 2)
before = rss()
for _ in range(1_000_000):
    f(model, x, 2)
print((rss() - before) / 1e6)
"""


_WORDS = """
import statistics, time
import equinox as eqx, jax, jax.numpy as jnp, eqx_fastjit
class Model(eqx.Module):
    x: jax.Array
    words: dict = eqx.field(static=True)
model = Model(jnp.ones(2), {f"word{i}": i for i in range(100_000)})
f = eqx_fastjit.filter_jit(lambda m: m.x + 1)
times = []
for _ in range(40):
    start = time.perf_counter()
    f(model)
    times.append(time.perf_counter() - start)
print(statistics.median(times[5:]) * 1e3)
"""


# A bytecode cache like that of an installed package, deleted with this process.
_BYTECODE = tempfile.TemporaryDirectory(prefix="eqx_fastjit")


def _python(code: str, *args: object) -> str:
    command = [sys.executable, "-c", code, *map(str, args)]
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = _BYTECODE.name
    run = subprocess.run(command, check=True, text=True, capture_output=True, env=env)
    return run.stdout


def _ratio(times: dict[str, list[float]], rival: str) -> float:
    pairs = zip(times["ours"], times[rival], strict=True)
    return statistics.median([a / b for a, b in pairs])


# Figures printed by a snippet: name, code, number of processes, how many of the first
# to ignore, limit, unit.
_OTHERS = [
    ("first call: ours/eqx", (_FIRST_CALL, 10), 3, 0, 1.03, ""),
    # The first process reads the files from disk.
    ("import after equinox", (_IMPORT,), 6, 1, 20, "ms"),
    ("a static dict of 100,000 words", (_WORDS,), 3, 0, 3, "ms"),
    ("a million calls", (_MEMORY,), 1, 0, 1, "MB"),
]
UNITS = {what: unit for what, *_, unit in _OTHERS}


class Figures:
    """The figures of a run, printed as they are measured."""

    def __init__(self, command: str):
        self.results = new_results(command, eqx_fastjit.engine())
        self.rows: list[dict[str, object]] = []

    def add(self, what: str, values: list[float], at_most: float, unit: str) -> None:
        value = statistics.median(values)
        self.rows.append(
            {
                "what": what,
                "value": value,
                "runs": values,
                "at_most": at_most,
                "commit": short_commit(self.results["commit"]),
                "command": self.results["command"],
            }
        )
        verdict = "met" if value <= at_most else "MISSED"
        spread = f"({min(values):.2f} to {max(values):.2f})"
        print(f"{what:38} {value:7.2f}{unit:3} {spread:18} <= {at_most}  {verdict}")
        sys.stdout.flush()

    def save(self, path: Path, keep: bool) -> None:
        """Write the file. `keep` preserves older figures that were not measured now."""
        known = json.loads(path.read_text())["rows"] if keep and path.exists() else []
        names = {row["what"] for row in self.rows}
        order = [f"{name}: ours/{rival}" for name, rival, _ in CALLS]
        rows = self.rows + [row for row in known if row["what"] not in names]
        rows.sort(key=lambda r: order.index(r["what"]) if r["what"] in order else 99)
        names = ("date", "machine", "versions", "engine")
        kept = {name: self.results[name] for name in names}
        path.write_text(json.dumps({**kept, "rows": rows}, indent=1) + "\n")


def _measure_calls(figures: Figures, only: str, rounds: int) -> None:
    cases: dict[str, list[dict[str, list[float]]]] = {}
    for name, rival, at_most in CALLS:
        what = f"{name}: ours/{rival}"
        if only not in what:
            continue
        if name not in cases:
            cases[name] = [json.loads(_python(_CALLS, name, rounds)) for _ in range(3)]
        figures.add(what, [_ratio(times, rival) for times in cases[name]], at_most, "")


def _show_signatures_in_turn(rounds: int) -> None:
    """With 1,000 programs in turn, each has left the processor's caches before its
    call.
    """
    times = json.loads(_python(_CALLS, "signatures_in_turn", rounds))
    shown = {
        who: statistics.median(
            a / b for a, b in zip(times[who], times[one], strict=True)
        )
        for who, one in (("ours", "one"), ("jit", "jit_one"))
    }
    print(
        f"  (1,000 signatures in turn, over one: ours {shown['ours']:.2f}, "
        f"jax.jit {shown['jit']:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--only",
        default="",
        help="measure figures whose names contain this; FILE keeps others",
    )
    options = parser.parse_args()
    command = ["python", "-m", "benchmarks.targets", "--rounds", str(options.rounds)]
    if options.only:
        command += ["--only", options.only]
    figures = Figures(shlex.join(command))
    _measure_calls(figures, options.only, options.rounds)
    if options.only in "signatures in turn":
        _show_signatures_in_turn(options.rounds)
    for what, code, processes, skipped, at_most, unit in _OTHERS:
        if options.only in what:
            values = [float(_python(*code)) for _ in range(processes)]
            figures.add(what, values[skipped:], at_most, unit)
    if options.json:
        figures.save(options.json, keep=bool(options.only))


if __name__ == "__main__":
    main()
