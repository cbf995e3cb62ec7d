"""How cases run: rounds, workers and jobs, with fake clocks, pipes and processes."""

import gc
import os
import queue
import signal
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

from eqx_fastjit.bench import (
    _run,
    _session,
    _timing,
    _worker,
    Measured,
)
from tests import faulty_cases


pytestmark = pytest.mark.one_engine


# --- rounds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(1.0, 1), (11e-3, 1), (9e-3, 10), (2**-9, 10), (2**-15, 131), (2**-19, 2000)],
)
def test_a_round_takes_four_milliseconds_or_ten_calls(seconds, calls, bench_clock):
    sampler = _timing.Sampler(lambda: bench_clock.sleep(seconds))
    assert sampler._count(sampler._blocked) == calls


def test_a_call_that_is_slow_at_first_is_counted_by_its_best(bench_clock):
    # Alone it takes 1/512 s, in a row 1/4096 s; one of three is disturbed.
    slow = iter([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    sizes = []

    def mode(n):
        sizes.append(n)
        return next(slow) + (2**-9 if n == 1 else n * 2**-12)

    assert _timing.Sampler(lambda: None)._count(mode) == 16
    assert sizes == [1, 1, 1, 5, 5, 5]


@pytest.mark.parametrize(
    ("seconds", "calls"), [(2**-20, 40), (2**-4, 9), (0.5, 2), (1.0, 1)]
)
def test_warming_up(seconds, calls, bench_clock, monkeypatch):
    """40 calls, or as many as take half a second."""
    made = []
    sampler = _timing.Sampler(lambda: (made.append(1), bench_clock.sleep(seconds)))
    monkeypatch.setattr(sampler, "_count", lambda mode: 7)
    sampler.warm()
    assert len(made) == calls
    sampler.round()
    # Three after the collection, which are not timed, and seven for each mode.
    assert len(made) == calls + 17


def test_the_first_calls_after_a_collection_are_not_timed(bench_clock, monkeypatch):
    cold = []
    monkeypatch.setattr(gc, "collect", lambda: cold.extend([1.0, 0.5, 0.25]))
    sampler = _timing.Sampler(
        lambda: bench_clock.sleep(cold.pop(0) if cold else 2**-10)
    )
    sampler._counts = {"dispatch": 10, "blocked": 10}
    assert sampler.round() == dict.fromkeys(["dispatch", "blocked"], 1e6 / 2**10)
    # Not of a call that takes as long as those.
    sampler._counts = {"dispatch": 1, "blocked": 1}
    assert sampler.round() == {"dispatch": 1e6, "blocked": 0.5e6}


def test_the_garbage_collector_rests_in_a_round(bench_clock, monkeypatch):
    seen, collected = [], []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    sampler = _timing.Sampler(
        lambda: (seen.append(gc.isenabled()), bench_clock.sleep(1.0))
    )
    sampler._counts = {"dispatch": 1, "blocked": 1}
    assert gc.isenabled()
    sampler.round()
    assert gc.isenabled() and seen == [False, False] and collected == [1]
    gc.disable()
    try:
        sampler.round()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_call_that_times_itself_is_called_once_a_round():
    calls = []

    def call():
        calls.append(1)
        return Measured(jnp.ones(2), {"x": 3.0})

    sampler = _timing.Sampler(call, times_itself=True)
    sampler.warm()
    assert calls == []
    assert sampler.round() == {"x": 3.0} and calls == [1]
    (array,) = _timing.output_arrays(call)
    assert array.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("steps", "waits"), [(1, 1), (15, 2), (16, 4), (30, 4), (31, 4)]
)
def test_calls_of_many_steps_are_waited_for(steps, waits, monkeypatch):
    waited = []
    monkeypatch.setattr(jax, "block_until_ready", waited.append)
    _timing.Sampler(lambda: None, steps)._dispatch(4)
    assert len(waited) == waits


def test_only_the_modes_that_are_asked_for(bench_clock):
    sampler = _timing.Sampler(lambda: bench_clock.sleep(1.0), modes=("blocked",))
    sampler.warm()
    assert sampler.round() == {"blocked": 1e6}


def test_arrays_of_an_output():
    key = jax.random.key(3)
    out = _timing.output_arrays(lambda: {"b": key, "a": jnp.ones(1), "c": "static"})
    assert [x.tolist() for x in out] == [[1], jax.random.key_data(key).tolist()]


@pytest.mark.parametrize(
    ("x", "same"),
    [
        (1 + 9e-5, True),
        (1 + 1.3e-4, False),
        (np.float32([1.0, 1.0]), False),
        (np.float64(1.0), False),
    ],
)
def test_outputs_are_the_same_up_to_rounding(x, same):
    x = np.float32(x) if isinstance(x, float) and type(x) is float else x
    assert _timing.same_arrays([np.float32(1.0)], [x]) == same
    assert not _timing.same_arrays([], [x])


def test_outputs_near_zero():
    near = [np.float32(9e-6)], [np.float32(1.3e-5)]
    zero = [np.float32(0.0)]
    assert [_timing.same_arrays(x, zero) for x in near] == [True, False]


# --- a session -----------------------------------------------------------------------


class Worker:
    """Takes the place of a process."""

    log: ClassVar = []

    def __init__(self, target, case, name, device):
        self.name = name
        self.log.append((target.__name__, case.name, name, device))
        self.rounds = 0

    def answer(self):
        return [np.ones(1)]

    def order(self, order):
        self.log.append((self.name, order))
        self.rounds += order == "round"
        if self.name == "flat" and self.rounds == 3:
            raise _session.Refused("gone")
        return {"dispatch": 10.0 * self.rounds, "blocked": 11.0 * self.rounds}

    def close(self):
        self.log.append((self.name, "closed"))


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(_session, "_Process", Worker)
    monkeypatch.setattr(Worker, "log", [])
    return Worker.log


def test_the_order_of_rounds(log):
    case = faulty_cases.make_case(faulty_cases.agreeing)
    times, advanced, names = {}, [], ("jit", "eqx", "ours")
    _session.run_case(case, names, "cpu", 3, times, {}, advanced.append)
    assert times == {
        "dispatch": {name: [10, 20, 30] for name in names},
        "blocked": {name: [11, 22, 33] for name in names},
    }
    assert advanced == [3, 3, 3, 1, 1, 1]
    assert log == [
        *[("serve", "agreeing", name, "cpu") for name in names],
        *[(name, "warm") for name in names],
        # None is always first, or always after the same one.
        *[(name, "round") for name in ("jit", "eqx", "ours")],
        *[(name, "round") for name in ("eqx", "ours", "jit")],
        *[(name, "round") for name in ("ours", "jit", "eqx")],
        *[(name, "closed") for name in reversed(names)],
    ]


def test_rounds_before_a_failure_are_kept(log):
    case = faulty_cases.make_case(faulty_cases.agreeing)
    times = {}
    with pytest.raises(_session.Refused, match=r"^flat: gone$"):
        _session.run_case(case, ("jit", "flat"), None, 3, times, {}, lambda n: None)
    assert times["blocked"] == {"jit": [11, 22], "flat": [11, 22]}
    assert log[-2:] == [("flat", "closed"), ("jit", "closed")]


def test_what_was_proved_is_kept_by_what_it_is():
    case = faulty_cases.make_case(faulty_cases.agreeing)
    proved = {}
    _session._prove_equal(case, {"jit": [np.ones(1)], "ours": [np.ones(1)]}, proved)
    assert proved == {"agreeing": ("jit", [np.ones(1)])}
    with pytest.raises(_session.Refused, match=r"^ours and jit return different"):
        _session._prove_equal(case, {"ours": [np.zeros(1)]}, proved)


def test_processes_start_with_interrupts_blocked():
    def blocked():
        return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])

    assert not blocked()
    with _session._interrupts_held():
        assert blocked()
    assert not blocked()
    with pytest.raises(KeyboardInterrupt), _session._interrupts_held():
        os.kill(os.getpid(), signal.SIGINT)
    assert not blocked()


def test_how_processes_start(monkeypatch):
    context = _session._context()
    assert context.get_start_method() == "forkserver"
    preloaded = []
    monkeypatch.setattr(
        type(context),
        "set_forkserver_preload",
        lambda self, names: preloaded.append(names),
    )
    _session._context()
    assert preloaded == [["eqx_fastjit.bench._worker", "eqx_fastjit.bench"]]
    monkeypatch.setattr(
        _session.multiprocessing, "get_all_start_methods", lambda: ["spawn"]
    )
    assert _session._context().get_start_method() == "spawn"


# --- workers -------------------------------------------------------------------------


class Pipe:
    """The worker's end, with the parent's orders."""

    def __init__(self, *orders):
        self.orders = queue.SimpleQueue()
        for order in orders:
            self.orders.put(order)
        self.sent = []

    def recv(self):
        if self.orders.empty():
            raise EOFError
        return self.orders.get()

    def send(self, message):
        if message[1] == "EOFError: ":
            raise BrokenPipeError
        self.sent.append(message)


@pytest.fixture
def configured(monkeypatch):
    """What a worker sets; SIGINT and the environment are restored."""
    set_ = {}
    monkeypatch.setattr(jax.config, "update", set_.__setitem__)
    monkeypatch.setattr(_worker, "os", type("os", (), {"environ": set_}))
    before = signal.getsignal(signal.SIGINT)
    yield set_
    signal.signal(signal.SIGINT, before)


ALWAYS = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    "jax_enable_compilation_cache": False,
}
CPU = {"JAX_PLATFORMS": "cpu", "jax_platforms": "cpu"}


@pytest.mark.parametrize(
    ("device", "n", "more"),
    [
        (None, 1, {}),
        ("gpu", 1, {}),
        ("cpu", 1, CPU),
        ("cpu", 2, CPU | {"jax_num_cpu_devices": 2}),
    ],
)
def test_what_a_worker_sets(device, n, more, configured):
    _worker._configure(device, n)
    assert configured == ALWAYS | more


def test_a_worker_does_as_told(configured, monkeypatch):
    case = faulty_cases.make_case(faulty_cases.agreeing, cpu_devices=3, steps=10)
    made = []

    class Sampler:
        def __init__(self, call, steps, times_itself):
            made.append((call().tolist(), steps, times_itself))

        def warm(self):
            made.append("warm")

        def round(self):
            return {"dispatch": 1.0}

    monkeypatch.setattr(_worker, "Sampler", Sampler)
    pipe = Pipe("warm", "round")
    with pytest.raises(SystemExit):
        _worker.serve(pipe, case, "ours", "cpu")
    (status, [array]), *rest = pipe.sent
    assert status == "ok" and array.tolist() == [1, 1, 1]
    assert rest == [("ok", None), ("ok", {"dispatch": 1.0})]
    assert made == [([1, 1, 1], 10, False), "warm"]
    assert configured["jax_num_cpu_devices"] == 3
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    pipe = Pipe()
    _worker.serve(pipe, faulty_cases.make_case(faulty_cases.failing), "ours", None)
    assert pipe.sent == [("error", "ValueError: faulty")]


def test_a_worker_says_what_device_there_is(configured, monkeypatch):
    pipe = Pipe()
    _worker.probe(pipe, "cpu")
    assert configured == ALWAYS | CPU
    assert pipe.sent == [
        ("ok", {"device": "cpu", "device_kind": "cpu", "engine": "native"})
    ]
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN

    def fail():
        raise RuntimeError

    monkeypatch.setattr(jax, "devices", fail)
    _worker.probe(pipe, "cpu")
    assert pipe.sent[1:] == [("error", "RuntimeError: ")]


def test_a_process_imports_this_package(monkeypatch, tmp_path):
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    monkeypatch.chdir(_worker._PACKAGE.parent)
    assert "PYTHONSAFEPATH" not in _worker.environment()
    monkeypatch.chdir(tmp_path)
    assert _worker.environment()["PYTHONSAFEPATH"] == "1"
    assert (_worker._PACKAGE / "bench" / "_worker.py").exists()


# --- jobs ----------------------------------------------------------------------------


DEVICE = {"device": "cpu", "device_kind": "a kind", "engine": "native"}


def job(rounds=5, **options):
    case = faulty_cases.make_case(faulty_cases.agreeing, size={"n": 3}, **options)
    return _run.Job(case, ("jit", "ours"), DEVICE, rounds)


def test_a_job():
    assert job().steps == 15
    assert job(unit="ms").entry() == {
        "name": "agreeing",
        "group": "faulty",
        "title": "",
        "size": {"n": 3},
        "device": "cpu",
        "device_kind": "a kind",
        "unit": "ms",
        "times": {},
    }


@pytest.fixture
def jobs(monkeypatch, capsys):
    """Run jobs whose cases do as told; returns the results and what is printed."""

    def jobs(*actions):
        calls, rest = [], list(actions)

        def run_case(case, contenders, device, rounds, times, proved, advance):
            calls.append((case.name, contenders, device, rounds, proved))
            proved["n"] = len(calls)
            times["dispatch"] = {"jit": [1.0, 2.0], "ours": [3.0]}
            action = rest.pop(0)
            if action is not None:
                raise action
            advance(rounds)

        monkeypatch.setattr(_run, "run_case", run_case)
        found = {"problems": [], "cases": [], "interrupted": False}
        console = Console(width=80, force_terminal=False)
        _run.run_jobs(console, [job() for _ in actions], found)
        return found, calls, capsys.readouterr().out

    return jobs


def test_jobs_are_run_in_turn(jobs):
    found, calls, out = jobs(None, _session.Refused("why"), None)
    assert out.split("\n")[:4] == [*["Timing agreeing"] * 3, ""]
    assert found["problems"] == ["agreeing: why"] and not found["interrupted"]
    # Of each, those rounds that all contenders have finished.
    times = [entry["times"] for entry in found["cases"]]
    assert times == [{"dispatch": {"jit": [1.0], "ours": [3.0]}}] * 3
    assert [c[:4] for c in calls] == [("agreeing", ("jit", "ours"), "cpu", 5)] * 3
    assert all(c[4] is calls[0][4] for c in calls)


def test_jobs_that_are_interrupted(jobs):
    found, calls, _ = jobs(None, KeyboardInterrupt(), None)
    assert found["interrupted"] is True
    assert len(calls) == len(found["cases"]) == 2


def test_a_bar_in_a_terminal(monkeypatch):
    advanced = []

    def run_case(*args):
        args[-1](5)
        args[-1](1)

    class Bar(_run.Progress):
        def update(self, task, **kwargs):
            advanced.append(kwargs)
            super().update(task, **kwargs)

        def advance(self, task, n):
            super().advance(task, n)
            advanced.append(self.tasks[0].completed)

    monkeypatch.setattr(_run, "run_case", run_case)
    monkeypatch.setattr(_run, "Progress", Bar)
    with open(os.devnull, "w") as file:
        console = Console(file=file, force_terminal=True)
        found = {"problems": [], "cases": []}
        _run.run_jobs(console, [job(), job(rounds=1)], found)
    assert advanced == [
        *({"completed": 0, "description": "agreeing"}, 5, 6),
        *({"completed": 15, "description": "agreeing"}, 20, 21),
    ]
    assert found["cases"] == []  # nothing was timed
