/* A clock that interrupts the main thread, whatever that is doing, by a signal.

Its thread never needs the GIL: a Python thread would come whenever the main one has
released the GIL, which is to say in JAX. */

#include "fastjit.h"

#if defined(_WIN32)

PyObject *start_ticks(PyObject *module, PyObject *args) {
    (void)module, (void)args;
    PyErr_SetString(PyExc_NotImplementedError, "there are no such signals");
    return NULL;
}

PyObject *stop_ticks(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    Py_RETURN_NONE;
}

#else

#include <pthread.h>
#include <signal.h>

typedef struct {
    PyThread_type_lock over; /* held while the thread is to go on */
    PY_TIMEOUT_T interval;
    pthread_t interrupted;
    int signal;
} Clock;

/* Of the process, as signals are. A clock is freed by its own thread. */
static Clock *current;

static void run_clock(void *arg) {
    Clock *clock = arg;
    while (PyThread_acquire_lock_timed(clock->over, clock->interval, 0) == PY_LOCK_FAILURE)
        pthread_kill(clock->interrupted, clock->signal);
    PyThread_release_lock(clock->over);
    PyThread_free_lock(clock->over);
    PyMem_RawFree(clock);
}

PyObject *stop_ticks(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    if (current != NULL) PyThread_release_lock(current->over);
    current = NULL;
    Py_RETURN_NONE;
}

/* `start_ticks(signal, microseconds)`: interrupts the thread that calls this. */
PyObject *start_ticks(PyObject *module, PyObject *args) {
    int signal;
    Py_ssize_t interval;
    if (!PyArg_ParseTuple(args, "in", &signal, &interval)) return NULL;
    Py_DECREF(stop_ticks(module, NULL));
    Clock *clock = PyMem_RawMalloc(sizeof(Clock));
    if (clock == NULL) return PyErr_NoMemory();
    *clock = (Clock){PyThread_allocate_lock(), interval, pthread_self(), signal};
    if (clock->over != NULL && PyThread_acquire_lock(clock->over, NOWAIT_LOCK) &&
        PyThread_start_new_thread(run_clock, clock) != PYTHREAD_INVALID_THREAD_ID) {
        current = clock;
        Py_RETURN_NONE;
    }
    if (clock->over != NULL) PyThread_free_lock(clock->over);
    PyMem_RawFree(clock);
    PyErr_SetString(PyExc_RuntimeError, "a thread could not be started");
    return NULL;
}

#endif
