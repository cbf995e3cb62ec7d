/* The callable: has a call bound, reads it, calls its specialization, builds the result. */

#include "fastjit.h"

/* --- who observes calls ------------------------------------------------------------------ */

/* `set_observer` of a `_blocking.Observer`, or of `None`. */
static PyObject *set_observer(PyObject *self, PyObject *observer) {
    (void)self;
    PyObject *set = observer == Py_None ? NULL : Py_NewRef(observer);

    LOCK();
    PyObject *before = shared.observer;
    STORE(shared.observer, set);
    UNLOCK();

    Py_XDECREF(before);
    Py_RETURN_NONE;
}

/* A call begins: it is observed by whom is set now, to its end. Mostly nobody is, which needs no
lock. */
static void observe(Walk *w) {
    if (LOAD(shared.observer) == NULL) return;

    LOCK();
    w->observer = Py_XNewRef(shared.observer);
    UNLOCK();

    if (w->observer == NULL) return;
    w->began = PyObject_CallMethodNoArgs(w->observer, shared.names[CLOCK]);
    if (w->began != NULL) return;
    PyErr_Clear();
    w->began = Py_NewRef(Py_None);
}

/* Has the observer make the call. */
static PyObject *call_observed(const Walk *w, PyObject *target, PyObject *specialization) {
    PyObject *arrays = tuple_of(w->arrays, w->n_arrays);
    PyObject *numpy_bytes = PyLong_FromSsize_t(w->numpy_bytes);

    PyObject *returned = NULL;
    if (arrays != NULL && numpy_bytes != NULL)
        returned = PyObject_CallMethodObjArgs(w->observer, shared.names[CALL], target,
                                              specialization, w->values, arrays, numpy_bytes,
                                              w->began, NULL);
    Py_XDECREF(arrays);
    Py_XDECREF(numpy_bytes);
    return returned;
}

/* --- what this thread is calling -------------------------------------------------------- */

/* The specialization whose `jax.jit` is running, for facts and errors (`_facts.py`); and
whether anything was traced or compiled for it. Saved and restored around each call. */
typedef struct {
    PyObject *specialization; /* owned, or NULL */
    int is_new;
} Active;

static THREAD_LOCAL Active active;

/* Makes a specialization active. The caller owns what it gets, for `deactivate`. */
static Active activate(PyObject *specialization) {
    Active outer = active;
    active = (Active){Py_XNewRef(specialization), 0};
    return outer;
}

static void deactivate(Active outer) {
    PyObject *inner = active.specialization;
    active = outer;
    Py_XDECREF(inner);
}

static PyObject *get_active(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    return Py_NewRef(active.specialization ? active.specialization : Py_None);
}

/* For a trace within a call, which goes on: so `is_new` stays. The caller gets the reference to the
outer one. */
static PyObject *set_active(PyObject *self, PyObject *specialization) {
    (void)self;
    Active outer = activate(specialization == Py_None ? NULL : specialization);
    active.is_new = outer.is_new;
    return outer.specialization ? outer.specialization : Py_NewRef(Py_None);
}

static PyObject *mark_new(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    active.is_new = 1;
    Py_RETURN_NONE;
}

/* JAX's unflatten of a `_result.Handle`, whose aux data, the first argument, is the handle itself.
In C for speed: it runs at each call. */
static PyObject *same_handle(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    return Py_NewRef(n > 0 ? args[0] : Py_None);
}

PyMethodDef call_functions[] = {
    {"active", get_active, METH_NOARGS, "The specialization that this thread is calling."},
    {"set_active", set_active, METH_O, "Set that one. Returns the one that was."},
    {"set_observer", set_observer, METH_O, "Set who makes every call, or nobody."},
    {"same_handle", (PyCFunction)(void (*)(void))same_handle, METH_FASTCALL,
     "The handle that a compiled function returns."},
    {"mark_new", mark_new, METH_NOARGS,
     "Something is traced or compiled for its call, which `complete_call` is told."},
    {NULL}};

/* --- the callable ----------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *table;    /* a dict (`table.c`) */
    PyObject *last;     /* a cell with the specialization that was found last */
    PyObject *callee;   /* `_engine.Callee`: specializes, completes calls, and words errors */
    PyObject *bind;     /* from the arguments of a call to its values (`_callables.py`) */
    Py_ssize_t n_positional; /* a call with so many by position needs no `bind`; -1: all need it */
    PyObject *target;   /* called in place of the specialization's `jitted`, or NULL */
} Callable;

static int callable_traverse(Callable *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->table);
    Py_VISIT(self->last);
    Py_VISIT(self->callee);
    Py_VISIT(self->bind);
    Py_VISIT(self->target);
    return 0;
}

static int callable_clear(Callable *self) {
    self->vectorcall = NULL;
    Py_CLEAR(self->table);
    Py_CLEAR(self->last);
    Py_CLEAR(self->callee);
    Py_CLEAR(self->bind);
    Py_CLEAR(self->target);
    return 0;
}

static void callable_dealloc(Callable *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    callable_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* --- a call ----------------------------------------------------------------------------- */

/* The specialization for a call, a new reference. On a cache miss, `specialize` makes one. It reads
the values again, which may differ by then; so the call is made with the arrays that it has read. */
static Specialization *find(Callable *self, Walk *w) {
    Specialization *found = table_find(self->table, self->last, w);
    if (found != NULL || PyErr_Occurred()) return found;

    PyObject *made = PyObject_CallMethodOneArg(self->callee, shared.names[SPECIALIZE], w->values);
    if (made == NULL) return NULL;

    walk_forget(w);
    PyObject *arrays;
    int is_read = PyArg_ParseTuple(made, "O!O", shared.specialization_type, &found, &arrays) &&
                  read_value(w, arrays, 0) == 0;
    if (is_read)
        Py_INCREF(found);
    else
        found = NULL;
    Py_DECREF(made);
    return found;
}

/* What a compiled function returned. */
typedef struct {
    PyObject *items; /* a list: arrays, and a handle */
    Plan *plan;      /* what the handle returns when it is called */
} Output;

/* Takes what was returned, with the reference to it (`_result.flat_output`). */
static int read_output(PyObject *returned, Output *out) {
    out->items = returned;
    if (!PyList_CheckExact(returned)) { /* of a `target` that is no function of `jax.jit` */
        out->items = PyObject_CallOneArg(shared.given[FLAT_OUTPUT], returned);
        Py_DECREF(returned);
        if (out->items == NULL) return -1;
    }

    Py_ssize_t n = PyList_GET_SIZE(out->items) - 1; /* where the handle is */
    PyObject *plan = n < 0 ? NULL : PyObject_CallNoArgs(PyList_GET_ITEM(out->items, n));
    out->plan = (Plan *)plan;
    if (plan != NULL && Py_TYPE(plan) == shared.plan_type && out->plan->n_arrays == n) return 0;
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "not the output of its trace");
    return -1;
}

/* Has Python complete a call: note what was compiled, or wait. */
static int finish(Callable *self, Specialization *specialization, const Output *out, Walk *w) {
    PyObject *results = tuple_of(PySequence_Fast_ITEMS(out->items), out->plan->n_arrays);
    PyObject *arrays = tuple_of(w->arrays, w->n_arrays), *done = NULL;

    if (results != NULL && arrays != NULL)
        done = PyObject_CallMethodObjArgs(
            self->callee, shared.names[COMPLETE_CALL], specialization, out->plan, arrays, results,
            active.is_new ? Py_True : Py_False, w->reads_numpy ? Py_True : Py_False, NULL);

    Py_XDECREF(results);
    Py_XDECREF(arrays);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Has Python decide what to raise in place of the exception that is set. */
static void explain(Callable *self, Specialization *specialization, Walk *w) {
    PyObject *error = take_error();
    PyObject *better = PyObject_CallMethodObjArgs(
        self->callee, shared.names[ERROR_OF_CALL],
        specialization ? (PyObject *)specialization : Py_None, error, w->values, NULL);
    if (better != NULL) put_error(better);
    Py_XDECREF(error);
}

static PyObject *call_specialization(Callable *self, Specialization *specialization, Walk *w) {
    PyObject *target = self->target ? self->target : specialization->jitted;
    PyObject *returned =
        w->observer == NULL ? PyObject_Vectorcall(target, w->arrays, w->n_arrays, NULL)
                            : call_observed(w, target, (PyObject *)specialization);
    if (returned == NULL) return NULL;

    /* Most calls need no completion: nothing was compiled, and nothing is to be waited for, be it
    the result, or what reads the user's memory. Those in a trace are completed by Python. */
    Output out = {NULL, NULL};
    PyObject *result = NULL;
    if (read_output(returned, &out) == 0) {
        int is_plain =
            out.plan->blocks == 0 && !active.is_new && !w->reads_numpy && !w->has_tracers;
        if (is_plain || finish(self, specialization, &out, w) == 0)
            result = plan_build(out.plan, PySequence_Fast_ITEMS(out.items));
    }
    Py_XDECREF(out.plan);
    Py_XDECREF(out.items);
    return result;
}

/* A call whose values are bound. */
static PyObject *call_bound(Callable *self, Walk *w) {
    Specialization *specialization = NULL;
    table_expect(self->last, w);
    if (read_values(w, w->values) == 0) specialization = find(self, w);
    /* The user may write to arrays of NumPy as soon as the call returns. Small ones are copied; if
    others stay the user's own, `reads_numpy` is set, and the call is completed by waiting. */
    if (specialization == NULL || copy_numpy(w) < 0) {
        explain(self, NULL, w);
        Py_XDECREF(specialization);
        return NULL;
    }

    Active outer = activate((PyObject *)specialization);
    PyObject *result = call_specialization(self, specialization, w);
    if (result == NULL) explain(self, specialization, w);
    deactivate(outer);
    Py_DECREF(specialization);
    return result;
}

static PyObject *callable_vectorcall(PyObject *callable, PyObject *const *args, size_t nargsf,
                                     PyObject *kwnames) {
    Walk *w = walk_take();
    if (w == NULL) return NULL;
    Callable *self = (Callable *)Py_NewRef(callable);
    observe(w);

    Py_ssize_t n = PyVectorcall_NARGS(nargsf);
    int is_bound = n == self->n_positional && kwnames == NULL;
    w->values = is_bound ? tuple_of(args, n) : PyObject_Vectorcall(self->bind, args, n, kwnames);
    PyObject *result = w->values == NULL ? NULL : call_bound(self, w);

    walk_give_back(w);
    Py_DECREF(self);
    return result;
}

/* --- set up by Python ------------------------------------------------------------------- */

/* `_engine.connect`: once, before the first call. */
static PyObject *callable_connect(Callable *self, PyObject *args) {
    PyObject *callee, *bind, *target, *table, *last;
    if (!PyArg_ParseTuple(args, "OOOO!O!n", &callee, &bind, &target, &PyDict_Type, &table,
                          &PyCell_Type, &last, &self->n_positional))
        return NULL;

    Py_XSETREF(self->callee, Py_NewRef(callee));
    Py_XSETREF(self->bind, Py_NewRef(bind));
    Py_XSETREF(self->target, target == Py_None ? NULL : Py_NewRef(target));
    Py_XSETREF(self->table, Py_NewRef(table));
    Py_XSETREF(self->last, Py_NewRef(last));
    self->vectorcall = callable_vectorcall;
    Py_RETURN_NONE;
}

static PyMemberDef callable_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Callable, vectorcall), READONLY, NULL},
    {NULL}};

static PyMethodDef callable_methods[] = {
    {"_connect", (PyCFunction)callable_connect, METH_VARARGS, NULL}, {NULL}};

static PyType_Slot callable_slots[] = {
    {Py_tp_doc, "The base class of jitted functions."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, callable_dealloc},
    {Py_tp_traverse, callable_traverse},
    {Py_tp_clear, callable_clear},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_members, callable_members},
    {Py_tp_methods, callable_methods},
    {0, NULL}};

PyType_Spec callable_spec = {
    "eqx_fastjit._native.Callable", sizeof(Callable), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    callable_slots};
