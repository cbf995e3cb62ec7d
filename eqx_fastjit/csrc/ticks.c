/* A thread that sends a signal to the main thread every few milliseconds.

Tools sample by it where Python is (`insight/record/_samples.py`): the handler runs between
two instructions of whatever the main thread does. A thread of Python would only run where
the main thread lets go of the GIL, and so would see those places alone; and a timer of the
system would be the program's own, and go on after `exec`. */

#include "fastjit.h"

#if !defined(_MSC_VER)
#include <pthread.h>
#include <signal.h>
#include <time.h>

static struct {
    PyThread_type_lock stop; /* held until the thread is to end; NULL if there is none */
    pthread_t thread, main;
    int signal;
    long long microseconds;
    clockid_t clock;           /* of the main thread's time on the CPU */
    /* When the first one was that no handler has asked of, and that time then, in seconds;
       0 if there is none. */
    _Atomic double sent, used;
} ticks;

static double now(clockid_t clock) {
    struct timespec time = {0};
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* The thread, which touches no object of Python's. */
static void *send(void *unused) {
    (void)unused;
    while (PyThread_acquire_lock_timed(ticks.stop, ticks.microseconds, 0) == PY_LOCK_FAILURE) {
        if (!ticks.sent) {
            ticks.used = now(ticks.clock);
            ticks.sent = now(CLOCK_MONOTONIC);
        }
        pthread_kill(ticks.main, ticks.signal);
    }
    PyThread_release_lock(ticks.stop);
    return NULL;
}

static void free_lock(void) {
    PyThread_free_lock(ticks.stop);
    ticks.stop = NULL;
}

/* `start_ticks(signal, seconds)`: to the thread that calls this. */
static PyObject *start_ticks(PyObject *self, PyObject *args) {
    (void)self;
    int signal;
    double seconds;
    if (!PyArg_ParseTuple(args, "id", &signal, &seconds)) return NULL;
    if (ticks.stop != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "there are ticks already");
        return NULL;
    }

    ticks.stop = PyThread_allocate_lock();
    if (ticks.stop == NULL) return PyErr_NoMemory();
    PyThread_acquire_lock(ticks.stop, WAIT_LOCK);
    ticks.main = pthread_self();
    ticks.clock = CLOCK_MONOTONIC; /* where threads have no clock that others can read */
#if defined(__linux__)
    pthread_getcpuclockid(ticks.main, &ticks.clock);
#endif
    ticks.signal = signal;
    ticks.microseconds = (long long)(1e6 * seconds);

    if (pthread_create(&ticks.thread, NULL, send, NULL) != 0) {
        free_lock();
        PyErr_SetString(PyExc_RuntimeError, "no thread can be started");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *stop_ticks(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    if (ticks.stop == NULL) Py_RETURN_NONE;

    PyThread_release_lock(ticks.stop);
    Py_BEGIN_ALLOW_THREADS
    pthread_join(ticks.thread, NULL);
    Py_END_ALLOW_THREADS
    free_lock();
    Py_RETURN_NONE;
}

/* `seconds_since_tick()`: how long Python was in C, and how long it computed there, when the
handler calls it. */
static PyObject *seconds_since_tick(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    double seconds = 0.0, computed = 0.0;
    if (ticks.sent) {
        seconds = now(CLOCK_MONOTONIC) - ticks.sent;
        computed = now(ticks.clock) - ticks.used;
    }
    ticks.sent = 0.0;
    return Py_BuildValue("dd", seconds, computed);
}

PyMethodDef ticks_functions[] = {
    {"start_ticks", start_ticks, METH_VARARGS, "Send a signal every so many seconds."},
    {"stop_ticks", stop_ticks, METH_NOARGS, "Send it no more."},
    {"seconds_since_tick", seconds_since_tick, METH_NOARGS, "Since one was sent."},
    {NULL}};
#else /* no signal can be sent to a thread */
PyMethodDef ticks_functions[] = {{NULL}};
#endif
