"""Exceptions, signals and forks at inconvenient moments."""

import contextlib
import gc
import os
import subprocess
import sys
import textwrap
import threading
import weakref

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import eqx_fastjit
from eqx_fastjit import _install, _record, filter_jit
from eqx_fastjit._signals import listed
from eqx_fastjit.insight import _captures, guard


X = jnp.array(2.0)


def _run(code, engine, *args, timeout=150):
    """Run code in a subprocess, which prints tracebacks and exits if it hangs."""
    begin = f"import faulthandler; faulthandler.dump_traceback_later({timeout - 20})\n"
    return subprocess.run(
        [sys.executable, "-c", begin + textwrap.dedent(code), *map(str, args)],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# --- exceptions while tracing ---


class Config:
    """A static that is compared by identity."""

    fail = True


def test_a_failed_trace_leaves_no_entry():
    traces = []

    @filter_jit
    def f(x, config):
        traces.append(config)
        if config.fail:
            raise KeyError("no")
        return x + 1

    config = Config()
    for _ in range(3):
        with pytest.raises(KeyError, match="no"):
            f(X, config)
        assert f._function.n_specializations() == 0
    config.fail = False
    for _ in range(3):
        assert f(X, config) == 3
    assert len(traces) == 4
    assert f._function.n_specializations() == 1


def test_statics_of_a_failed_trace_are_not_kept():
    @filter_jit
    def f(x, config):
        raise KeyError("no")

    config = Config()
    with pytest.raises(KeyError, match="no"):
        f(X, config)
    alive = weakref.ref(config)
    del config
    jax.clear_caches()  # clears JAX's own tables too
    gc.collect()
    assert alive() is None


def test_a_failed_run_keeps_its_entry():
    traces = []

    @filter_jit
    def f(x):
        traces.append(1)
        return eqx.error_if(x, x < 0, "negative")

    for _ in range(3):
        with pytest.raises(eqx.EquinoxRuntimeError, match="negative"):
            f(-X)
        assert f(X) == 2
    assert len(traces) == 1


def test_a_trace_that_fails_for_one_shape_spares_the_others():
    traces = []

    @filter_jit
    def f(x):
        traces.append(1)
        return x @ jnp.ones(3)

    assert f(jnp.ones(3)) == 3
    for _ in range(2):
        with pytest.raises(TypeError, match=r"contracting dimensions .*\(4,\)"):
            f(jnp.ones(4))
    assert f(jnp.ones(3)) == 3
    assert len(traces) == 3


# --- recursion ---


def test_infinite_recursion():
    endless = r"Recursively calling|recursion depth"
    for jit in (jax.jit, filter_jit):

        @jit
        def f(x):
            return f(x) + 1

        with pytest.raises(RecursionError, match="Recursively calling"):
            f(X)
        with pytest.raises(RecursionError, match=endless):
            f(X)
    g = filter_jit(lambda x, n: x if n == 0 else g(x + 1, n - 1))
    assert g(X, 5) == 7
    with pytest.raises(RecursionError, match=endless):
        g(X, -1)
    assert g(X, 6) == 8


# --- signals ---

# Interrupts first calls at random moments: in this package, in JAX and in XLA. One that
# comes while JAX leaves a trace (4 of 150) has the process trace every operation from
# then on, with `jax.jit` alone too: it ends, and says how many calls it interrupted.
_INTERRUPT = """
import random, signal, sys, tempfile, time
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import filter_jit

armed = False

def interrupt(*_):
    global armed
    if armed:
        armed = False
        raise KeyboardInterrupt

signal.signal(signal.SIGINT, interrupt)
signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))

class Model(eqx.Module):
    w: jax.Array
    n: int = eqx.field(static=True)

rng = random.Random(sys.argv[1])
interrupted = 0
x = jnp.array(5.0)
for i in range(int(sys.argv[2])):
    class Own(Model):  # a new type
        pass

    traces = []

    @filter_jit
    def f(m, x, n):
        traces.append(n)
        return m.w * x + n + i, m, n

    m = Own(jnp.array(2.0), 3)
    try:
        armed = True
        # Mostly early, during our own code and the trace.
        signal.setitimer(signal.ITIMER_REAL, 0.0003 + 0.08 * rng.random() ** 3)
        while armed:
            f(m, x, 1)
    except KeyboardInterrupt:
        interrupted += 1
    if isinstance(x + 1, jax.core.Tracer):
        break
    before = len(traces)
    for n in (1, 2, 1):
        for _ in range(18):
            y, out, same = f(m, x, n)
            assert float(y) == 10 + n + i and same == n and out.n == 3
    assert len(traces) - before <= 2, traces
print(interrupted)
"""


def test_interrupts_at_any_time(engine):
    interrupted = 0
    for seed in range(5):
        out = _run(_INTERRUPT, engine, seed, 40 - interrupted)
        assert out.returncode == 0, out.stderr
        interrupted += int(out.stdout)
        # Some are swallowed where Python ignores exceptions, such as in `__del__`.
        if interrupted >= 20:
            return
    pytest.fail(f"{interrupted} of 40 calls were interrupted")


def test_a_signal_handler_may_come_while_a_lock_is_held():
    """The handler runs on the thread that holds the lock, so a plain lock would
    deadlock.
    """
    modules = (_record, _captures, _install)
    done = []

    def run():
        with contextlib.ExitStack() as stack:
            for module in modules:
                stack.enter_context(module._lock)
            with eqx_fastjit.installed(), guard(max_traces=1):
                done.append(float(eqx.filter_jit(lambda x: x + 1)(jnp.array(1.0))))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(120)
    assert done == [2.0]


# --- threads ---


def test_errors_of_callbacks_reach_their_own_thread():
    """The callbacks of one function raise after dispatch, in several threads."""
    n_threads = 8

    def fails(x):
        if x < 0:
            raise ZeroDivisionError(f"number {float(-x):.0f} failed")
        return x

    f = filter_jit(lambda x: jax.pure_callback(fails, x, x))
    g = filter_jit(lambda x: (jax.debug.callback(fails, x), x + 1)[1])
    h = filter_jit(lambda x, name: eqx.error_if(x, x < 0, f"{name} failed"))
    for jitted in (f, g):
        jitted(X)
    wrong = []
    barrier = threading.Barrier(n_threads)

    def target(i):
        barrier.wait()
        for _ in range(5):
            for call, expected in (
                (lambda: f(jnp.float32(-i)), f"number {i} failed"),
                (lambda: g(jnp.float32(-i)), f"number {i} failed"),
                (lambda: h(jnp.float32(-i), f"<{i}>"), f"<{i}> failed"),
            ):
                try:
                    call()
                except Exception as e:
                    if expected not in str(e):
                        wrong.append((expected, str(e)))
                else:
                    wrong.append((expected, "no error"))
                if f(jnp.float32(i)) != i:
                    wrong.append((i, "value"))

    threads = [
        threading.Thread(target=target, args=(i,)) for i in range(1, n_threads + 1)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]


def test_sixteen_threads_that_do_everything(engine):
    """The short form of `python -m tests.stress_threads --seconds 60`."""
    out = subprocess.run(
        [sys.executable, "-m", "tests.stress_threads", "--seconds", "3"],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
        timeout=300,
    )
    assert out.returncode == 0, out.stderr
    assert '"failures": 0' in out.stdout


class _Grows:
    """Iterates like a dictionary that another thread adds to, twice."""

    def __init__(self):
        self.data, self.times = {1: 1}, 0

    def __iter__(self):
        for x in self.data:
            self.times += 1
            if self.times <= 2:
                self.data[-self.times] = 0
            yield x


@pytest.mark.one_engine
def test_what_grows_while_it_is_listed():
    assert listed(_Grows()) == [1, -1, -2]


# --- processes ---

_WORKERS = """
import multiprocessing, sys, warnings
import equinox as eqx, jax, jax.numpy as jnp
from eqx_fastjit import filter_jit, engine

@filter_jit
def work(m, n):
    return m(jnp.ones(2)) * n, n, engine()

def model():
    return eqx.nn.Linear(2, 2, key=jax.random.key(0))

def child(n, out):
    y, same, engine = work(model(), n)
    again, _, _ = work(model(), n)
    out.put((n, y.tolist(), again.tolist(), same, engine))

if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    filter_jit(lambda x: x)  # wrapped before the fork, with the engine chosen
    if sys.argv[1] == "spawn":
        work(model(), 0)  # JAX has been used
    out = context.Queue()
    workers = [context.Process(target=child, args=(n, out)) for n in (1, 2.0)]
    for worker in workers:
        worker.start()
    results = [out.get(timeout=100) for _ in workers]
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    for n, y, again, same, its_engine in results:
        expected, _, own_engine = work(model(), n)
        assert y == again == expected.tolist() and same == n
        assert its_engine == own_engine
    if sys.argv[1] == "spawn":
        # The function itself is sent by pickle.
        with context.Pool(1) as pool:
            assert pool.apply(work, (model(), 3))[1] == 3
    print("done")
"""


@pytest.mark.one_engine
@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_worker_processes(method, engine, tmp_path):
    """Forked processes can use JAX if their parent has not used it before the fork."""
    script = tmp_path / "workers.py"
    script.write_text(_WORKERS)
    out = subprocess.run(
        [sys.executable, "-W", "error", str(script), method],
        env=dict(os.environ, EQX_FASTJIT_ENGINE=engine),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert out.stdout.strip() == "done", out.stderr


def test_a_fork_after_jax_was_used_is_warned_of():
    """The fork causes JAX's warning; a child that then uses JAX is not supported."""
    f = filter_jit(lambda x: x + 1)
    f(X)
    with pytest.warns(RuntimeWarning, match=r"os.fork\(\) was called"):
        pid = os.fork()
        if pid == 0:
            os._exit(0)  # the child does not use JAX
    assert os.waitpid(pid, 0)[1] == 0
    assert f(X) == 3
