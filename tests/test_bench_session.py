"""How a benchmark runs: rounds, workers, jobs, results; with fake clocks and pipes."""

import gc
import json
import os
import platform
import queue
import re
import signal
import subprocess
from importlib.metadata import version
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import eqx_fastjit
from eqx_fastjit import _record
from eqx_fastjit.bench import (
    _calls,
    _case,
    _children,
    _contenders,
    _overlap,
    _results,
    _run,
    _session,
    _studies,
    _timing,
    _worker,
    BadResults,
    case_info,
    load,
    Measured,
)
from tests import faulty_cases
from tests.clock import Clock


pytestmark = pytest.mark.one_engine


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (_timing, _studies, _overlap):
        monkeypatch.setattr(module, "time", clock)
    return clock


# --- rounds --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [(5e-3, 1), (2**-8, 1), (2**-9, 2), (2**-15, 131), (2**-19, 2000), (1.0, 1)],
)
def test_a_round_takes_four_milliseconds(seconds, calls, clock):
    sampler = _timing.Sampler(lambda: clock.sleep(seconds))
    assert sampler._count(sampler._blocked) == calls


def test_a_call_that_is_slow_at_first_is_counted_by_its_best(clock):
    # Alone it takes 2 ms, in a row 1 ms; one of three is disturbed.
    slow = iter([1.0, 0.0, 1.0, 0.0, 1.0, 0.0])
    sizes = []

    def mode(n):
        sizes.append(n)
        return next(slow) + (2**-9 if n == 1 else n * 2**-10)

    assert _timing.Sampler(lambda: None)._count(mode) == 4
    assert sizes == [1, 1, 1, 5, 5, 5]


@pytest.mark.parametrize(
    ("seconds", "calls"), [(2**-20, 40), (2**-4, 9), (0.5, 2), (1.0, 1)]
)
def test_warming_up(seconds, calls, clock, monkeypatch):
    """40 calls, or as many as take half a second."""
    made = []
    sampler = _timing.Sampler(lambda: (made.append(1), clock.sleep(seconds)))
    monkeypatch.setattr(sampler, "_count", lambda mode: 7)
    sampler.warm()
    assert len(made) == calls
    sampler.round()
    assert len(made) == calls + 14


def test_the_garbage_collector_rests_in_a_round(clock, monkeypatch):
    seen, collected = [], []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(1))
    sampler = _timing.Sampler(lambda: (seen.append(gc.isenabled()), clock.sleep(1.0)))
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


def test_only_the_modes_that_are_asked_for(clock):
    sampler = _timing.Sampler(lambda: clock.sleep(1.0), modes=("blocked",))
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
    monkeypatch.chdir(_children._PACKAGE.parent)
    assert "PYTHONSAFEPATH" not in _children.environment()
    monkeypatch.chdir(tmp_path)
    assert _children.environment()["PYTHONSAFEPATH"] == "1"
    assert (_children._PACKAGE / "bench" / "_children.py").exists()


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


# --- results -------------------------------------------------------------------------


def test_the_machine(monkeypatch):
    assert _results.machine() == {
        "cpu": _results._cpu(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "architecture": platform.machine(),
    }

    class Info:
        text = "processor : 0\nmodel name\t: A: fast CPU \nmodel name : other\n"

        def __init__(self, path):
            assert path == "/proc/cpuinfo"

        def read_text(self):
            if self.text is None:
                raise FileNotFoundError
            return self.text

    monkeypatch.setattr(_results, "Path", Info)
    monkeypatch.setattr(platform, "processor", lambda: "a processor")
    assert _results._cpu() == "A: fast CPU"
    for Info.text in ("", None):
        assert _results._cpu() == "a processor"
    monkeypatch.setattr(platform, "processor", lambda: "")
    assert _results._cpu() == platform.machine()


def test_versions(monkeypatch):
    monkeypatch.setattr(_results, "_PACKAGES", ("no-such-package", "jax"))
    assert _results._versions() == {
        "eqx_fastjit": eqx_fastjit.__version__,
        "python": platform.python_version(),
        "jax": version("jax"),
    }


def test_the_commit(monkeypatch, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (tmp_path / "other").touch()
    monkeypatch.setattr(eqx_fastjit, "__file__", str(package / "__init__.py"))

    def git(*args):
        name = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *name, *args], cwd=tmp_path, check=True)

    assert _results._commit() is None
    git("init", "-q")
    git("add", "other")
    git("commit", "-qm", "without the package")
    # The package lies in somebody else's checkout.
    assert _results._commit() is None
    git("add", "package")
    git("commit", "-qm", "with it")
    commit = _results._commit()
    assert re.fullmatch("[0-9a-f]{40}", commit)
    (tmp_path / "other").write_text("changed, but not the package")
    (package / "new").touch()
    assert _results._commit() == commit
    (package / "__init__.py").write_text("changed")
    assert _results._commit() == commit + "+"
    monkeypatch.setenv("PATH", "")
    assert _results._commit() is None


def test_new_results(monkeypatch):
    monkeypatch.setattr(_results, "_commit", lambda: "abc")
    found = _results.new_results("a command", "python")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", found.pop("date"))
    assert found == {
        "schema": 1,
        "command": "a command",
        "machine": _results.machine(),
        "versions": _results._versions(),
        "engine": "python",
        "interrupted": False,
        "problems": [],
        "cases": [],
        "commit": "abc",
    }
    monkeypatch.setattr(_results, "_commit", lambda: None)
    assert "commit" not in _results.new_results("", "python")


def test_a_short_commit():
    assert _results.short_commit("0123456789abcdef") == "0123456789ab"
    assert _results.short_commit("0123456789abcdef+") == "0123456789ab+"


def test_the_layout_of_a_file():
    found = {"a": [1.0, 2.0], "b": {"c": [{"d": 0.123456}, "e"], "f": []}, "g": {}}
    assert _results.dumps(found) == (
        '{\n "a": [1.0, 2.0],\n "b": {\n  "c": [\n   {\n    "d": 0.1235\n   },\n'
        '   "e"\n  ],\n  "f": []\n },\n "g": {}\n}\n'
    )


@pytest.mark.parametrize(
    ("rounds", "kept"), [([3, 3], 3), ([3, 2], 2), ([1, 1], 1), ([1, 0], 0), ([], 0)]
)
def test_rounds_that_all_have_finished(rounds, kept):
    by = {str(i): [float(x) for x in range(n)] for i, n in enumerate(rounds)}
    times = _results.even({"times": {"x": by, "y": dict(by)}})["times"]
    if kept:
        by = {name: [float(x) for x in range(kept)] for name in by}
    assert times == ({"x": by, "y": by} if kept else {})


def test_files_that_are_no_results(tmp_path):
    path = tmp_path / "a.json"
    for content, message in (
        ("[1]", f"{path} is not a results file: it has no 'schema'"),
        ('"schema"', f"{path} is not a results file: it has no 'schema'"),
        ("{}", f"{path} is not a results file: it has no 'schema'"),
        ('{"schema": "1"}', f"{path} has schema '1'; this version reads 1"),
    ):
        path.write_text(content)
        with pytest.raises(BadResults) as e:
            load(path)
        assert str(e.value) == message
    with pytest.raises(BadResults) as e:
        load(tmp_path / "none")
    assert str(e.value) == f"cannot read {tmp_path / 'none'}: No such file or directory"


@pytest.mark.parametrize("key", ["date", "command", "problems", "interrupted"])
def test_a_file_lacks_what_it_should_have(key, tmp_path):
    found = _results.new_results("", "native")
    del found[key]
    path = tmp_path / "a.json"
    path.write_text(json.dumps(found))
    with pytest.raises(BadResults, match=f"complete results file: KeyError: '{key}'"):
        load(path)


# --- cases ---------------------------------------------------------------------------


def test_what_a_case_needs(monkeypatch):
    case = faulty_cases.make_case(faulty_cases.agreeing, requires=("jax", "no_such"))
    assert case.missing == ("no_such",)
    monkeypatch.setitem(_case._CASES, "agreeing", case)
    assert _case.contenders_of("agreeing") == ()
    monkeypatch.setattr(_case, "_is_installed", lambda name: name != "flax")
    assert _case.contenders_of("mlp_8") == ("jit", "flat", "aot", "eqx", "ours")
    assert _case.contenders_of("agreeing") == ("jit", "ours")
    monkeypatch.setattr(_case, "_is_installed", lambda name: True)
    assert _case.contenders_of("mlp_8")[-2:] == ("nnx_jit", "nnx_cached_partial")


def test_which_cases_time_themselves():
    make = faulty_cases.make_case
    assert not make(faulty_cases.agreeing).times_itself
    assert not make(faulty_cases.agreeing, modes=("dispatch",)).times_itself
    assert make(faulty_cases.agreeing, modes=("blocked",)).times_itself


@pytest.mark.parametrize(
    ("strategy", "made", "called"),
    [
        ("whole", ["calls"], 1),
        ("part", ["affine"], 101),
        ("both", ["affine", "calls"], 102),
        ("none", [], 0),
    ],
)
def test_what_a_strategy_jits(strategy, made, called):
    jitted, calls = [], []

    def jit(function):
        jitted.append(function.__name__)
        return lambda x: (calls.append(1), function(x))[1]

    out = _studies._strategy_of(jit, strategy)()
    assert (jitted, len(calls)) == (made, called)
    assert out.shape == (1000, 1000)


def test_the_strategy_without_jit_is_eager():
    assert list(_studies._strategy("none")) == ["eager"]
    assert list(_studies._strategy("part")) == ["jit", "eqx", "ours"]
    (call,) = [make() for make in _studies._strategy("none").values()]
    _record.traces.clear()
    assert call()[0, 0] == 1 and not _record.traces


@pytest.mark.parametrize("n", [1, 3])
def test_statics_are_traced_before_they_are_timed(n):
    make = _calls._statics(n)["ours"]
    _record.traces.clear()
    call = make()
    assert len(_record.traces) == n
    for _ in range(2 * n):
        call()
    assert len(_record.traces) == n
    passed = []
    jit = lambda f: lambda x, i: passed.append(i)  # noqa: E731
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_calls.eqx_fastjit, "filter_jit", jit)
        call = _calls._statics(n)["ours"]()
    for _ in range(n + 1):
        call()
    assert passed == [*range(n), *range(n), 0]


@pytest.mark.parametrize(("fresh", "functions"), [(True, 20), (False, 1)])
def test_a_loop_that_jits(fresh, functions):
    jitted = []
    call = _calls._loop_of(lambda f: (jitted.append(f), f)[1], fresh)
    assert call().tolist() == [2.0**20] * 3
    assert len(jitted) == 20 and len(set(jitted)) == functions


def test_sharded_inputs_need_devices(monkeypatch):
    make = case_info("sharded").makers
    _, (model, x), _ = make()["exportable"]()
    assert len(x.sharding.device_set) == 8 and not x.sharding.is_fully_replicated
    weight = model.layers[0].weight
    assert len(weight.sharding.device_set) == 8 and weight.sharding.is_fully_replicated
    devices = jax.devices("cpu")
    monkeypatch.setattr(jax, "devices", lambda platform: devices[:7])
    with pytest.raises(RuntimeError, match="needs 8 CPU devices and there are 7: set"):
        make()


def test_a_fresh_python_has_bytecode(monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    code = "import os, sys; print(2 * sys.dont_write_bytecode + {}('{}' in os.environ))"
    assert _studies._python(code.format("int", "PYTHONPYCACHEPREFIX")) == 1.0
    with pytest.raises(subprocess.CalledProcessError):
        _studies._python("raise SystemExit(1)")
    assert os.path.isdir(_studies._bytecode().name)


def test_commands_of_processes(monkeypatch):
    monkeypatch.setattr(_studies, "_python", lambda code: code)
    times = {
        name: make()().times["import"]
        for name, make in case_info("import_time").makers().items()
    }
    assert [t.count("eqx_fastjit") for t in times.values()] == [0, 0, 2, 0]
    assert "\nimport jax; jax.jit\nprint((time" in times["jit"]
    times = {
        name: make()().times["peak"]
        for name, make in case_info("peak_memory").makers().items()
    }
    assert tuple(times) == case_info("peak_memory").contenders
    assert """make_case("mlp_32", ('eqx',))['eqx']""" in times["eqx"]


def test_nobody_listens_to_jax_outside_of_a_first_call(clock):
    listener = _studies._listener()
    assert _studies._listener() is listener
    out = _studies.split_in_stages(lambda: clock.sleep(1.0))
    assert listener.spans is None
    assert out.times["total"] == out.times["run"] == 1000
    listener.hear(next(iter(_studies._EVENTS)), 1.0)
    with pytest.raises(ZeroDivisionError):
        _studies.split_in_stages(lambda: 1 / 0)
    assert listener.spans is None


def test_a_step_and_the_batches_of_a_pipeline(monkeypatch):
    net = _overlap._Net(jnp.eye(2))
    net, value = _overlap._step(net, jnp.array([1.0, 3.0]))
    x = np.eye(2) + 2
    for _ in range(4):
        x = np.tanh(x @ np.eye(2))
    assert value == pytest.approx(x[0, 0], rel=1e-4)
    np.testing.assert_allclose(net.weight, 0.5 * (np.eye(2) + x), rtol=1e-4)
    assert net.name == "net"
    batches = []
    step = lambda state, batch: (batches.append(batch), (state + 1, state))[1]  # noqa: E731
    assert _overlap._loop(step, 0).output == 9
    # The least of 100,000 random numbers, in order; other ones each time.
    assert [batch.shape for batch in batches] == [(64,)] * 10
    for batch in batches:
        assert (np.diff(batch) >= 0).all() and 3e-4 < batch[-1] < 1.2e-3
    assert len({float(batch[0]) for batch in batches}) == 10


# --- contenders ----------------------------------------------------------------------


def _increment(x, state):
    return {**state, "n": state["n"] + x}, state["n"] * 2


@pytest.mark.parametrize("donate", [True, False])
def test_steps_go_on_from_their_own_state(donate):
    state = {"n": jnp.zeros(2), "static": "s"}
    makers = _contenders.of_step(_increment, jnp.ones(2), state, donate)
    given = {}
    for name in ("jit", "flat", "aot", "eqx", "ours"):
        call = makers[name]()
        first = jax.tree.leaves(call())
        assert [x.tolist() for x in first if eqx.is_array(x)] == [[1, 1], [0, 0]]
        out = jax.tree.leaves(call())
        assert [x.tolist() for x in out if eqx.is_array(x)] == [[2, 2], [2, 2]]
        given[name] = first[0].is_deleted()
    assert given == dict.fromkeys(given, donate)
    assert not state["n"].is_deleted()
    function, args, advance = makers["exportable"]()
    out = function(*args)
    assert state["n"].is_deleted() == donate
    (x, state) = advance(args, out)
    assert x is args[0] and state["n"].tolist() == [1, 1] and state["static"] == "s"


def test_loops_carry_what_they_return():
    def step(a, b, c, static):
        return a + c, {"n": b["n"] * 2}, a - b["n"]

    carried = jnp.zeros(1), {"n": jnp.ones(1)}
    makers = _contenders.of_loop(step, carried, (jnp.full(1, 3.0), "static"))
    for name in ("jit", "flat", "eqx", "ours"):
        call = makers[name]()
        found = [[float(x[0]) for x in jax.tree.leaves(call())] for _ in range(3)]
        assert found == [[3, 2, -1], [6, 4, 1], [9, 8, 2]], name
    function, args, advance = makers["exportable"]()
    args = advance(args, function(*args))
    assert [float(x[0]) for x in jax.tree.leaves(args[:-1])] == [3, 2, 3]
    assert args[-1] == "static"


def test_a_function_under_each_contender():
    def f(x, n, y):
        return {"a": x * n, "b": "static"}, y

    args = (jnp.ones(2), 3, np.ones(2))
    makers = _contenders.of_function(f, *args)
    outputs = {name: make()() for name, make in makers.items() if name != "exportable"}
    assert list(outputs) == ["eager", "jit", "flat", "aot", "eqx", "ours"]
    for name, out in outputs.items():
        arrays = [x for x in jax.tree.leaves(out) if not isinstance(x, str)]
        assert [x.tolist() for x in arrays] == [[3, 3], [1, 1]], name
    assert outputs["eqx"][0]["b"] == outputs["ours"][0]["b"] == "static"
    assert isinstance(outputs["flat"], list)
    function, given, advance = makers["exportable"]()
    assert given == args and advance(given, None) is given
    assert isinstance(function, eqx_fastjit.JitWrapped)


@pytest.mark.parametrize(
    ("x", "traced"),
    [(jnp.ones(1), True), (np.ones(1), True), (np.float32(1), True), (1.0, False)],
)
def test_what_is_traced(x, traced):
    assert _contenders.is_traced(x) == traced


def test_a_filled_model():
    def make():
        return jnp.zeros((100, 16)), jnp.zeros(()), jnp.zeros(4, jnp.int32), "static"

    matrix, scalar, integers, static = _contenders.filled(make)
    assert 0.24 < abs(matrix).max() <= 0.25 and abs(matrix.mean()) < 0.02
    assert matrix.min() < -0.24 and abs(scalar) <= 1
    assert integers.dtype == jnp.int32 and static == "static"
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(
        matrix, rng.uniform(-0.25, 0.25, (100, 16)).astype(np.float32)
    )
    np.testing.assert_array_equal(scalar, rng.uniform(-1, 1, ()).astype(np.float32))
