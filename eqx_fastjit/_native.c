/* One native pass over a call: bind, partition, look up, call `jax.jit`, combine.

`_partition.py`, `_plan.py` and `_static_keys.py` are the reference and say what it all means;
this file does the same without running Python for what it knows, and asks Python, for that
value alone, about what it does not. `_function.py` is what it calls on a cache miss. The
walk over a call is in `_walk.h`. docs/how-it-works.md has the picture.

Why C: the same walk in Cython was as quick, but a small call took 0.4 us more, since
`__call__(*args)` makes a tuple, of the 0.4 us that identity may cost over `jax.jit`. */

#include "_walk.h"

/* --- specializations, and a table of them ------------------------------------------- */

typedef struct Spec {
    PyObject_HEAD
    PyObject *jitted, *flat, *plans;
    Entry *trail; /* owned */
    size_t n_trail;
    uint64_t hash;
    /* A tuple, or NULL: mutable statics that it was traced with, each after its number
    among those of a call, or after what says whether it is the same as it was. What was
    traced may refer to these very objects. */
    PyObject *witnesses;
    int n_quick; /* `settle_numpy` */
    Known *known; /* of `n_known` trees of a call, the first */
    size_t n_known;
    struct Table *table; /* borrowed; NULL once it is in none */
    struct Spec *next;   /* in its bucket */
    struct Spec *older, *newer;
} Spec;

typedef struct Table {
    PyObject_HEAD
    Spec **buckets;
    size_t mask;
    Py_ssize_t count, capacity;
    size_t longest; /* of the trails that it had */
    Spec *oldest, *newest;
    Spec *last; /* the last that was found */
} Table;

static int spec_traverse(Spec *self, visitproc visit, void *arg) {
    Py_VISIT(self->jitted);
    Py_VISIT(self->flat);
    Py_VISIT(self->plans);
    Py_VISIT(self->witnesses);
    for (size_t i = 0; i < self->n_trail; i++)
        if (HOLDS(self->trail[i])) Py_VISIT(self->trail[i].as.object);
    return 0;
}

/* No `tp_clear`: a call may be in the middle of this in another thread while the collector
clears garbage. A cycle is broken by the table. */
static void spec_dealloc(Spec *self) {
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->jitted);
    Py_XDECREF(self->flat);
    Py_XDECREF(self->plans);
    Py_XDECREF(self->witnesses);
    for (size_t i = 0; i < self->n_trail; i++)
        if (HOLDS(self->trail[i])) Py_DECREF(self->trail[i].as.object);
    PyMem_Free(self->trail);
    for (size_t i = 0; i < self->n_known; i++) free_known(&self->known[i]);
    PyMem_Free(self->known);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int spec_init(Spec *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"jitted", "flat", "plans", NULL};
    PyObject *jitted, *flat, *plans;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO", names, &jitted, &flat, &plans))
        return -1;
    if (self->plans != NULL) { /* it may be in the middle of a call */
        PyErr_SetString(PyExc_RuntimeError, "a specialization is made once");
        return -1;
    }
    self->plans = Py_NewRef(plans);
    self->jitted = Py_NewRef(jitted);
    self->flat = Py_NewRef(flat);
    return 0;
}

#define MEMBER(type, name) {#name, Py_T_OBJECT_EX, offsetof(type, name), Py_READONLY, NULL}
#ifndef Py_T_OBJECT_EX
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#define Py_READONLY READONLY
#endif

static PyMemberDef spec_members[] = {
    MEMBER(Spec, jitted), MEMBER(Spec, flat), MEMBER(Spec, plans), {NULL}};

static PyObject *spec_set_witnesses(Spec *self, PyObject *statics);
static PyObject *spec_matches(Spec *self, PyObject *values);

/* For tests: that nothing is read again cannot be seen in any other way. */
static PyObject *spec_n_known(Spec *self, void *unused) {
    size_t n = 0;
    (void)unused;
    for (size_t i = 0; i < self->n_known; i++) n += self->known[i].n_trail > 0;
    return PyLong_FromSize_t(n);
}

static PyGetSetDef spec_getset[] = {
    {"n_known", (getter)spec_n_known, NULL, "Trees that are not read again.", NULL}, {NULL}};

static PyMethodDef spec_methods[] = {
    {"set_witnesses", (PyCFunction)spec_set_witnesses, METH_O,
     "What it was traced with that can be changed, each after its number or a check."},
    {"matches", (PyCFunction)spec_matches, METH_O, "Whether it is for these bound values."},
    {NULL}};

static PyTypeObject SpecType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Specialization",
    .tp_doc = "What is compiled for one signature of one function.",
    .tp_basicsize = sizeof(Spec),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)spec_init,
    .tp_dealloc = (destructor)spec_dealloc,
    .tp_traverse = (traverseproc)spec_traverse,
    .tp_members = spec_members,
    .tp_methods = spec_methods,
    .tp_getset = spec_getset,
};

/* Takes a specialization out of its table; the caller gets the table's reference. */
static void table_unlink(Table *self, Spec *spec) {
    Spec **link = &self->buckets[spec->hash & self->mask];
    while (*link != spec) link = &(*link)->next;
    *link = spec->next;
    *(spec->older ? &spec->older->newer : &self->oldest) = spec->newer;
    *(spec->newer ? &spec->newer->older : &self->newest) = spec->older;
    if (self->last == spec) self->last = NULL;
    spec->table = NULL;
    spec->next = spec->older = spec->newer = NULL;
    self->count--;
}

/* The next such call is a cache miss. */
static void table_forget(Spec *spec) {
    if (spec->table == NULL) return;
    table_unlink(spec->table, spec);
    Py_DECREF(spec);
}

/* Drops the oldest, down to a given number. Finalizers may run any code, which may add
others without end. */
static void table_shrink(Table *self, Py_ssize_t count) {
    for (Py_ssize_t n = self->count - count; n > 0 && self->oldest != NULL; n--) {
        Spec *spec = self->oldest;
        table_unlink(self, spec);
        Py_DECREF(spec);
    }
}

static int table_reserve(Table *self) {
    if (self->buckets != NULL && (size_t)self->count <= self->mask) return 0;
    size_t size = self->buckets ? 4 * (self->mask + 1) : 8;
    Spec **buckets = PyMem_Calloc(size, sizeof(Spec *));
    if (buckets == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    PyMem_Free(self->buckets);
    self->buckets = buckets;
    self->mask = size - 1;
    for (Spec *spec = self->oldest; spec != NULL; spec = spec->newer) {
        spec->next = buckets[spec->hash & self->mask];
        buckets[spec->hash & self->mask] = spec;
    }
    return 0;
}

/* Adds a specialization for the trail of a walk, which owns what it holds. */
static int table_add(Table *self, Spec *spec, Walk *w, uint64_t hash) {
    if (spec->table != NULL || spec->trail != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a specialization is for one signature");
        return -1;
    }
    if (table_reserve(self) < 0) return -1;
    Entry *trail = PyMem_Malloc((w->n_trail + 1) * sizeof(Entry));
    if (trail == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(trail, w->trail, w->n_trail * sizeof(Entry));
    for (size_t i = 0; i < w->n_trail; i++)
        if (HOLDS(trail[i])) Py_INCREF(trail[i].as.object);
    spec->trail = trail;
    spec->n_trail = w->n_trail;
    spec->hash = hash;
    spec->table = self;
    if (w->n_trail > self->longest) self->longest = w->n_trail;
    spec->next = self->buckets[hash & self->mask];
    self->buckets[hash & self->mask] = (Spec *)Py_NewRef((PyObject *)spec);
    spec->older = self->newest;
    *(self->newest ? &self->newest->newer : &self->oldest) = spec;
    self->newest = spec;
    if (++self->count > self->capacity)
        table_shrink(self, self->capacity - self->capacity / 4);
    return 0;
}

/* The last specialization that was found, a new reference, if the trail is the same in
every bit. Most calls are like the one before, and need no hash: a tenth of what a call
with 200 statics costs. */
static Spec *table_same_as_last(Table *self, const Walk *w) {
    Spec *spec = self->last;
    if (spec == NULL || spec->n_trail != w->n_trail ||
        memcmp(spec->trail, w->trail, w->n_trail * sizeof(Entry)) != 0)
        return NULL;
    return (Spec *)Py_NewRef((PyObject *)spec);
}

/* The specialization for a walk, a new reference; NULL if there is none, or an error. */
static Spec *table_find(Table *self, Walk *w, uint64_t hash) {
    if (self->buckets == NULL) return NULL;
    Spec *spec = self->buckets[hash & self->mask];
    while (spec != NULL) {
        if (spec->hash == hash) {
            Py_INCREF(spec);
            int same = same_trail(w->trail, w->n_trail, spec->trail, spec->n_trail);
            /* After somebody's `==` the table may be another, and what was dropped from it
            by the collector cannot be called: jaxlib's function is cleared as well. */
            Spec *next = spec->next;
            int gone = spec->table != self;
            if (same > 0 && !gone) return self->last = spec;
            Py_DECREF(spec); /* which, if it is gone, may run anything */
            if (same < 0) return NULL;
            spec = gone ? self->buckets[hash & self->mask] : next;
        } else {
            spec = spec->next;
        }
    }
    return NULL;
}

/* Whether a static that it was traced with has been changed: 1, 0 or -1. */
static int is_changed_since(Spec *spec, PyObject *x, const Mutable *current) {
    size_t start = current->start, stop = current->stop;
    Walk now;
    walk_init(&now);
    now.limit += spec->n_trail;
    int same = 0;
    if (walk_static(&now, x, VISIT_STATIC) == 0)
        same = same_trail(now.trail, now.n_trail, spec->trail + start, stop - start);
    else if (!PyErr_ExceptionMatches(PyExc_Exception) || is_endless())
        same = -1;
    else
        PyErr_Clear();
    walk_free(&now);
    return same < 0 ? -1 : !same;
}

/* The same, by what Python was given to check it. */
static int is_changed_by(PyObject *check, PyObject *x) {
    PyObject *same = PyObject_CallOneArg(check, x);
    int is_same = same == NULL ? -1 : PyObject_IsTrue(same);
    Py_XDECREF(same);
    return is_same < 0 ? -1 : !is_same;
}

/* Whether any has: 1, 0 or -1. */
static int is_stale(Spec *spec, Walk *w) {
    PyObject *witnesses = Py_NewRef(spec->witnesses);
    int stale = 0;
    for (Py_ssize_t i = 0; stale == 0 && i + 1 < PyTuple_GET_SIZE(witnesses); i += 2) {
        PyObject *which = PyTuple_GET_ITEM(witnesses, i);
        PyObject *x = PyTuple_GET_ITEM(witnesses, i + 1);
        const Mutable *current = NULL;
        if (PyLong_Check(which)) {
            size_t number = PyLong_AsSize_t(which);
            current = number < w->n_mutables ? &w->mutables[number] : NULL;
            if (current == NULL || current->object == x) continue;
        }
        own_everything(w);
        end_nested(w); /* the next walk is, in its place */
        stale = current != NULL ? is_changed_since(spec, x, current) : is_changed_by(which, x);
    }
    Py_DECREF(witnesses);
    return stale;
}

static PyObject *spec_set_witnesses(Spec *self, PyObject *statics) {
    if (!PyTuple_Check(statics)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple");
        return NULL;
    }
    Py_XSETREF(self->witnesses, Py_NewRef(statics));
    Py_RETURN_NONE;
}

static int table_traverse(Table *self, visitproc visit, void *arg) {
    for (Spec *spec = self->oldest; spec != NULL; spec = spec->newer) Py_VISIT(spec);
    return 0;
}

static int table_clear(Table *self) {
    table_shrink(self, 0);
    return 0;
}

static void table_dealloc(Table *self) {
    PyObject_GC_UnTrack(self);
    table_shrink(self, 0);
    PyMem_Free(self->buckets);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int table_init(Table *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"capacity", NULL};
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &capacity)) return -1;
    if (capacity < 1) {
        PyErr_SetString(PyExc_ValueError, "a table has room for one at least");
        return -1;
    }
    self->capacity = capacity;
    return 0;
}

static PyObject *table_clear_method(Table *self, PyObject *unused) {
    (void)unused;
    table_shrink(self, 0);
    Py_RETURN_NONE;
}

static PyObject *table_remove(Table *self, PyObject *x) {
    if (Py_TYPE(x) == &SpecType && ((Spec *)x)->table == self) table_forget((Spec *)x);
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(Table *self) { return self->count; }

static PyObject *table_get(Table *self, PyObject *args);
static PyObject *table_arrays_of(Table *self, PyObject *args);

static PyMethodDef table_methods[] = {
    {"get", (PyCFunction)table_get, METH_VARARGS, "The specialization for bound values."},
    {"arrays_of", (PyCFunction)table_arrays_of, METH_VARARGS,
     "The arrays of bound values, in JAX's order."},
    {"clear", (PyCFunction)table_clear_method, METH_NOARGS, "Forget all."},
    {"remove", (PyCFunction)table_remove, METH_O, "Forget one, if it is in the table."},
    {NULL}};

static PySequenceMethods table_sequence = {.sq_length = (lenfunc)table_length};

static PyTypeObject TableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Table",
    .tp_doc = "The specializations of one function, by signature.",
    .tp_basicsize = sizeof(Table),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)table_init,
    .tp_dealloc = (destructor)table_dealloc,
    .tp_traverse = (traverseproc)table_traverse,
    .tp_clear = (inquiry)table_clear,
    .tp_methods = table_methods,
    .tp_as_sequence = &table_sequence,
};

/* --- results -------------------------------------------------------------------------

The numbers are those of `Op` in `_plan.py`. */

static PyObject *tuple_of(PyObject *const *items, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return tuple;
}

static PyObject *list_of(PyObject *const *items, Py_ssize_t n) {
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(items[i]));
    return list;
}

enum { OP_ARRAY, OP_CONSTANT, OP_TUPLE, OP_LIST, OP_DICT, OP_MODULE, OP_CALL, OP_NAMEDTUPLE,
       OP_PLAIN_NAMEDTUPLE };

typedef struct {
    int op;
    Py_ssize_t n;
    PyObject *data;               /* owned */
    /* Of `OP_MODULE`, borrowed from `data`. */
    PyTypeObject *type;
    PyObject *fields, *names, *descriptor, *otherwise;
    unsigned int version;         /* the type's, if another is to be called */
    int runs_python;              /* whether it may run the user's code */
} Step;

typedef struct {
    PyObject_HEAD
    struct Handle *handle; /* borrowed; each forgets the other when it dies */
    Step *steps;
    Py_ssize_t n_steps, n_arrays, depth;
    int blocks; /* -1: not known yet */
} Plan;

typedef struct Handle {
    PyObject_HEAD
    Plan *plan; /* borrowed */
    PyObject *weakrefs;
} Handle;

static int plan_traverse(Plan *self, visitproc visit, void *arg) {
    for (Py_ssize_t i = 0; i < self->n_steps; i++) Py_VISIT(self->steps[i].data);
    return 0;
}

/* No `tp_clear`, as for a specialization. A cycle is broken by `Plan` in Python. */
static void plan_dealloc(Plan *self) {
    PyObject_GC_UnTrack(self);
    /* From here on, no result can be built, in case a finalizer asks for one. */
    if (self->handle != NULL) self->handle->plan = NULL;
    for (Py_ssize_t i = 0; i < self->n_steps; i++) Py_DECREF(self->steps[i].data);
    PyMem_Free(self->steps);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *plan_build_method(Plan *self, PyObject *arrays);

static PyMethodDef plan_methods[] = {
    {"build", (PyCFunction)plan_build_method, METH_O, "The result, from its arrays."},
    {NULL}};

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Plan",
    .tp_doc = "How to build the result of one trace.",
    .tp_methods = plan_methods,
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = (destructor)plan_dealloc,
    .tp_traverse = (traverseproc)plan_traverse,
};

/* Reads `Plan.steps`, checking that they build just one value. */
static int plan_read(Plan *self, PyObject *steps) {
    Py_ssize_t n = PyTuple_Size(steps), depth = 0;
    if (n < 0) return -1;
    self->steps = PyMem_Calloc(n + 1, sizeof(Step));
    if (self->steps == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Step *step = &self->steps[i];
        int op;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(steps, i), "inO", &op, &step->n, &step->data))
            return -1;
        Py_INCREF(step->data);
        step->op = op;
        self->n_steps = i + 1;
        /* These two are created without their `__new__`. */
        if (op == OP_MODULE) {
            if (!PyArg_ParseTuple(step->data, "O!O!O!O!O", &PyType_Type, &step->type,
                                  &PyDict_Type, &step->fields, &PyTuple_Type, &step->names,
                                  &PyGetSetDescr_Type, &step->descriptor, &step->otherwise))
                return -1;
            PyTypeObject *base = PyDescr_TYPE(step->descriptor);
            if (!(base->tp_flags & Py_TPFLAGS_HEAPTYPE) || !PyType_IsSubtype(step->type, base))
                goto bad;
            if (step->otherwise == Py_None) {
                step->otherwise = NULL;
            } else {
                if (step->type->tp_new != PyBaseObject_Type.tp_new) goto bad;
                unsigned int version = step->type->tp_version_tag;
                step->version = version ? version : (unsigned)-1;
            }
        } else if (op == OP_PLAIN_NAMEDTUPLE) {
            if (!PyType_Check(step->data) ||
                !PyType_IsSubtype((PyTypeObject *)step->data, &PyTuple_Type))
                goto bad;
        }
        if (op == OP_ARRAY) self->n_arrays++;
        depth += op == OP_ARRAY || op == OP_CONSTANT ? 1 : 1 - step->n;
        if (depth > self->depth) self->depth = depth;
        if (depth < 1 || step->n < 0 || op < OP_ARRAY || op > OP_PLAIN_NAMEDTUPLE) goto bad;
        Py_ssize_t expected = op == OP_DICT     ? PyTuple_Size(step->data)
                              : op == OP_MODULE ? PyTuple_GET_SIZE(step->names)
                                                : step->n;
        if (expected != step->n) goto bad;
        step->runs_python = op == OP_CALL || op == OP_NAMEDTUPLE;
        for (Py_ssize_t j = 0; op == OP_DICT && j < step->n; j++)
            step->runs_python |= !PyUnicode_CheckExact(PyTuple_GET_ITEM(step->data, j));
    }
    if (depth == 1) return 0;
bad:
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "a plan that builds nothing");
    return -1;
}

static PyObject *handle_set_plan(Handle *self, PyObject *python) {
    PyObject *steps = PyObject_GetAttr(python, s_steps);
    if (steps == NULL) return NULL;
    Plan *plan = PyObject_GC_New(Plan, &PlanType);
    if (plan == NULL) {
        Py_DECREF(steps);
        return NULL;
    }
    memset((char *)plan + sizeof(PyObject), 0, sizeof(Plan) - sizeof(PyObject));
    plan->blocks = -1;
    int failed = plan_read(plan, steps);
    PyObject_GC_Track(plan);
    Py_DECREF(steps);
    if (failed == 0) failed = PyObject_SetAttr(python, s_native, (PyObject *)plan);
    if (failed == 0) {
        if (self->plan != NULL) self->plan->handle = NULL;
        self->plan = plan;
        plan->handle = self;
    }
    Py_DECREF(plan);
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

static void handle_dealloc(Handle *self) {
    if (self->plan != NULL) self->plan->handle = NULL;
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Without an address, because it may be in the text of a program. */
static PyObject *handle_repr(Handle *self) {
    (void)self;
    return PyUnicode_FromString("<result>");
}

static PyMethodDef handle_methods[] = {
    {"set_plan", (PyCFunction)handle_set_plan, METH_O, "Have a plan build the result."},
    {NULL}};

static PyTypeObject HandleType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Handle",
    .tp_doc = "Carries out of a trace which result it gave: `_plan.ResultHandle`.",
    .tp_basicsize = sizeof(Handle),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = (destructor)handle_dealloc,
    .tp_repr = (reprfunc)handle_repr,
    .tp_methods = handle_methods,
    .tp_weaklistoffset = offsetof(Handle, weakrefs),
};

/* As `jax.tree_util.register_pytree_node` takes them, without Python: 0.1 us a call. */
static PyObject *flatten_handle(PyObject *self, PyObject *handle) {
    (void)self;
    return Py_BuildValue("(()O)", handle);
}

static PyObject *unflatten_handle(PyObject *self, PyObject *const *args, Py_ssize_t n) {
    (void)self;
    if (n != 2) {
        PyErr_SetString(PyExc_TypeError, "expected static data and children");
        return NULL;
    }
    return Py_NewRef(args[0]);
}

/* A Module, or a dataclass that only sets its fields: by `object.__new__` and a dictionary. */
static PyObject *build_module(const Step *step, PyObject **children) {
    PyObject *fields = PyDict_Copy(step->fields), *module = NULL;
    if (fields == NULL) return NULL;
    for (Py_ssize_t i = 0; i < step->n; i++)
        if (PyDict_SetItem(fields, PyTuple_GET_ITEM(step->names, i), children[i]) < 0)
            goto done;
    module = step->type->tp_alloc(step->type, 0);
    /* Not `PyObject_GenericSetDict`: on Python 3.13 attributes then look uninitialised. */
    if (module != NULL &&
        PyGetSetDescr_Type.tp_descr_set(step->descriptor, module, fields) < 0)
        Py_CLEAR(module);
done:
    Py_DECREF(fields);
    return module;
}

static PyObject *call_with(PyObject *f, PyObject **children, Py_ssize_t n) {
    PyObject *args = tuple_of(children, n);
    if (args != NULL) Py_SETREF(args, PyObject_CallOneArg(f, args));
    return args;
}

/* Whether a class is no longer the one that only sets its fields. */
static inline int is_changed(const Step *step) {
    return step->version && step->version != step->type->tp_version_tag;
}

static PyObject *build_node(const Step *step, PyObject **children) {
    Py_ssize_t n = step->n;
    PyObject *out;
    switch (step->op) {
    case OP_TUPLE:
        return tuple_of(children, n);
    case OP_CALL:
        return call_with(step->data, children, n);
    case OP_LIST:
        return list_of(children, n);
    case OP_DICT:
        out = PyDict_New();
        for (Py_ssize_t i = 0; out != NULL && i < n; i++)
            if (PyDict_SetItem(out, PyTuple_GET_ITEM(step->data, i), children[i]) < 0)
                Py_CLEAR(out);
        return out;
    case OP_MODULE:
        return is_changed(step) ? call_with(step->otherwise, children, n)
                                : build_module(step, children);
    case OP_PLAIN_NAMEDTUPLE:
        out = ((PyTypeObject *)step->data)->tp_alloc((PyTypeObject *)step->data, n);
#if PY_VERSION_HEX >= 0x030E0000
        if (out != NULL) ((PyTupleObject *)out)->ob_hash = -1; /* not known yet */
#endif
        for (Py_ssize_t i = 0; out != NULL && i < n; i++)
            PyTuple_SET_ITEM(out, i, Py_NewRef(children[i]));
        return out;
    default: /* OP_NAMEDTUPLE */
        return PyObject_Vectorcall(step->data, children, n, NULL);
    }
}

static PyObject *plan_build(Plan *self, PyObject *const *arrays);

static PyObject *plan_build_method(Plan *self, PyObject *arrays) {
    if (!PyList_CheckExact(arrays) || PyList_GET_SIZE(arrays) != self->n_arrays ||
        self->n_steps == 0) {
        PyErr_SetString(PyExc_TypeError, "expected a list of the result's arrays");
        return NULL;
    }
    return plan_build(self, ((PyListObject *)arrays)->ob_item);
}

#define SMALL_STACK 64

/* Builds the result from the arrays that were returned. The garbage collector waits: as many
new objects as a large result has would let it look at all of them, each call; and then most
programs let go of as many, the arguments. An adamw step of a GPT of 12 blocks, with cold
caches: 1.25 of the time that a flat list of the arrays takes with it, 1.15 without. */
static PyObject *plan_build(Plan *self, PyObject *const *arrays) {
    PyObject *small[SMALL_STACK], **stack = small, *result = NULL;
    Py_ssize_t top = 0;
    if (self->depth > SMALL_STACK &&
        (stack = PyMem_Malloc(self->depth * sizeof(PyObject *))) == NULL)
        return PyErr_NoMemory();
    int enabled = PyGC_Disable();
    for (Py_ssize_t i = 0; i < self->n_steps; i++) {
        const Step *step = &self->steps[i];
        if (step->op == OP_ARRAY) {
            stack[top++] = Py_NewRef(*arrays++);
        } else if (step->op == OP_CONSTANT) {
            stack[top++] = Py_NewRef(step->data);
        } else {
            int runs_python = step->runs_python || is_changed(step);
            if (runs_python && enabled) PyGC_Enable();
            PyObject *node = build_node(step, stack + top - step->n);
            if (runs_python) enabled = PyGC_Disable();
            if (node == NULL) goto done;
            for (Py_ssize_t j = 0; j < step->n; j++) Py_DECREF(stack[--top]);
            stack[top++] = node;
        }
    }
    result = stack[--top];
done:
    if (enabled) PyGC_Enable();
    while (top > 0) Py_DECREF(stack[--top]);
    if (stack != small) PyMem_Free(stack);
    return result;
}

/* --- the current calls of each thread --------------------------------------------------- */

/* A frame on the stack, and its number. A greenlet that is left in the middle of a call
(`gevent`) leaves others to write where its frames were: then the number is another. */
typedef struct { struct Frame *frame; uint64_t number; } Link;

typedef struct Frame {
    uint64_t number;
    Link outer;
    PyObject *function;   /* borrowed from whoever calls, like the values */
    Spec *spec;
    PyObject *const *values;
    Py_ssize_t n_values;
    const Walk *walk;
    PyObject *call; /* owned: the `Call`, once something asked for it */
} Frame;

static THREAD_LOCAL Link innermost;

static inline Frame *frame_at(Link link) {
    return link.frame != NULL && link.frame->number == link.number ? link.frame : NULL;
}

static inline void enter_frame(Frame *frame) {
    static uint64_t n_frames;
    frame->number = ++n_frames * ODD; /* no small number, of which memory is full */
    frame->outer = innermost;
    innermost = (Link){frame, frame->number};
}

static inline void leave_frame(Frame *frame) {
    innermost = frame->outer;
    frame->number = 0;
}

/* The statics of a call that can be changed. */
static PyObject *mutables_of(const Walk *w) {
    PyObject *tuple = PyTuple_New(w->n_mutables);
    for (size_t i = 0; tuple != NULL && i < w->n_mutables; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(w->mutables[i].object));
    return tuple;
}

static PyObject *call_of_frame(Frame *frame) {
    if (frame->call == NULL) {
        PyObject *values = tuple_of(frame->values, frame->n_values), *call = NULL;
        PyObject *mutable = mutables_of(frame->walk);
        if (values != NULL && mutable != NULL)
            call = PyObject_CallFunctionObjArgs(py_call_class, frame->function,
                                                (PyObject *)frame->spec, values, mutable, NULL);
        Py_XDECREF(values);
        Py_XDECREF(mutable);
        if (call == NULL) return NULL;
        if (frame->call == NULL) /* a signal handler may have asked for it as well */
            frame->call = call;
        else
            Py_DECREF(call);
    }
    return Py_NewRef(frame->call);
}

static PyObject *innermost_call(PyObject *self, PyObject *unused) {
    (void)self;
    (void)unused;
    Frame *frame = frame_at(innermost);
    if (frame == NULL) Py_RETURN_NONE;
    return call_of_frame(frame);
}

/* The innermost call of the specialization that traces a given function. */
static PyObject *find_call(PyObject *self, PyObject *flat) {
    (void)self;
    for (Frame *frame = frame_at(innermost); frame != NULL; frame = frame_at(frame->outer)) {
        if (frame->spec != NULL) {
            if (frame->spec->flat == flat) return call_of_frame(frame);
            continue;
        }
        PyObject *spec = PyObject_GetAttr(frame->call, s_specialization);
        PyObject *its = spec == NULL ? NULL : PyObject_GetAttr(spec, s_flat);
        Py_XDECREF(spec);
        if (its == NULL) return NULL;
        Py_DECREF(its);
        if (its == flat) return Py_NewRef(frame->call);
    }
    Py_RETURN_NONE;
}

/* A context manager for a call that Python makes. */
typedef struct { PyObject_HEAD Frame frame; int entered; } Calling;

static int calling_init(Calling *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"call", NULL};
    PyObject *call;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &call)) return -1;
    if (self->frame.call != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a context is made for one call");
        return -1;
    }
    self->frame.call = Py_NewRef(call);
    return 0;
}

static void calling_dealloc(Calling *self) {
    Py_XDECREF(self->frame.call);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *calling_enter(Calling *self, PyObject *unused) {
    (void)unused;
    if (self->frame.call == NULL || self->entered) {
        PyErr_SetString(PyExc_RuntimeError, "a context is entered once");
        return NULL;
    }
    self->entered = 1;
    Py_INCREF(self); /* the thread's list of calls has it now */
    enter_frame(&self->frame);
    Py_RETURN_NONE;
}

static PyObject *calling_exit(Calling *self, PyObject *unused) {
    (void)unused;
    if (innermost.frame != &self->frame) {
        PyErr_SetString(PyExc_RuntimeError, "calls must end in the order they began in");
        return NULL;
    }
    leave_frame(&self->frame);
    Py_DECREF(self);
    Py_RETURN_NONE;
}

static PyMethodDef calling_methods[] = {
    {"__enter__", (PyCFunction)calling_enter, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)calling_exit, METH_VARARGS, NULL},
    {NULL}};

static PyTypeObject CallingType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Calling",
    .tp_doc = "The context of whatever may trace a specialization for a `Call`.",
    .tp_basicsize = sizeof(Calling),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)calling_init,
    .tp_dealloc = (destructor)calling_dealloc,
    .tp_methods = calling_methods,
};

/* --- the callable --------------------------------------------------------------------- */

enum { POSITIONAL_ONLY, POSITIONAL, VAR_POSITIONAL, KEYWORD_ONLY, VAR_KEYWORD };

/* What a call needs, in one tuple: a call holds on to it, and another may take its place
meanwhile (`_prepare`), as the defaults of a function can be changed. */
enum { P_FUNCTION,  /* `Function` */
       P_TABLE,     /* its `Table` */
       P_FUN,       /* the user's callable, if it is passed along */
       P_NAMES,     /* of the parameters: a tuple */
       P_KINDS,     /* of the parameters: bytes */
       P_DEFAULTS,  /* a tuple of pairs: what to pass, and the default; or None */
       P_BINDER,    /* binds whatever is not plainly right */
       P_SOURCE,    /* the Python function whose defaults these are, or None */
       P_POSITIONAL /* its `__defaults__` */ };

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *python_call; /* set: the Python engine is in use, and nothing below is */
    PyObject *prepared;
    Py_ssize_t fun_index; /* of `P_FUN` among the values; -1: not passed along */
} Callable;

static int callable_traverse(Callable *self, visitproc visit, void *arg) {
    Py_VISIT(self->python_call);
    Py_VISIT(self->prepared);
    return 0;
}

static int callable_clear(Callable *self) {
    Py_CLEAR(self->python_call);
    Py_CLEAR(self->prepared);
    return 0;
}

static void callable_dealloc(Callable *self) {
    PyObject_GC_UnTrack(self);
    callable_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

/* Whether the default of a parameter is still the known one. `position` is where the last
one was in `__kwdefaults__`, which has them in order. */
static int default_is_current(PyObject *const *with, Py_ssize_t i, PyObject *pair,
                              Py_ssize_t *position) {
    if (with[P_SOURCE] == Py_None) return 1;
    if (PyBytes_AS_STRING(with[P_KINDS])[i] != KEYWORD_ONLY) {
        PyObject *now = PyFunction_GET_DEFAULTS(with[P_SOURCE]);
        return (now == NULL ? Py_None : now) == with[P_POSITIONAL];
    }
    PyObject *now = PyFunction_GET_KW_DEFAULTS(with[P_SOURCE]), *key, *value;
    PyObject *name = PyTuple_GET_ITEM(with[P_NAMES], i);
    if (now == NULL) return 0;
    /* Not looked up, which would run the `==` of a key that is no `str`: nothing holds the
    arguments yet. */
    for (int again = 0; again < 2; again++, *position = 0)
        while (PyDict_Next(now, position, &key, &value))
            if (key == name ||
                (PyUnicode_CheckExact(key) && PyUnicode_Compare(key, name) == 0))
                return value == PyTuple_GET_ITEM(pair, 1);
    return 0;
}

enum { BOUND, NOT_PLAIN, FAILED };

/* Whether a keyword is the name of a parameter. Names are interned, so of keywords that are
as well, no two with the same text differ. */
static inline int is_name(PyObject *key, PyObject *name, int interned) {
    return key == name ||
           (!interned && PyUnicode_GET_LENGTH(key) == PyUnicode_GET_LENGTH(name) &&
            PyUnicode_Compare(key, name) == 0);
}

/* Where the keyword of a parameter is; `n` if it was not given. Most are in the order of the
parameters, so from the last one on: 100 keywords for 200 parameters took 80 us. */
static Py_ssize_t find_keyword(PyObject *kwnames, Py_ssize_t n, PyObject *name,
                               Py_ssize_t last, int interned) {
    Py_ssize_t j = last;
    for (Py_ssize_t tried = 0; tried < n; tried++) {
        if (is_name(PyTuple_GET_ITEM(kwnames, j), name, interned)) return j;
        j = j + 1 < n ? j + 1 : 0;
    }
    return n;
}

/* Binds a call: one value per parameter, each a new reference. What is not plainly right
is left to Python (`NOT_PLAIN`), which also has the error for it. */
static int bind(PyObject *const *with, PyObject *const *args, Py_ssize_t n_args,
                PyObject *kwnames, PyObject **values) {
    Py_ssize_t n = PyTuple_GET_SIZE(with[P_NAMES]), n_positional = 0, i;
    Py_ssize_t n_keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), n_used = 0;
    Py_ssize_t position = 0, last = 0;
    const char *kinds = PyBytes_AS_STRING(with[P_KINDS]);
    int interned = 1;
    for (i = 0; i < n_keywords; i++) {
        PyObject *key = PyTuple_GET_ITEM(kwnames, i);
        if (!PyUnicode_CheckExact(key)) return NOT_PLAIN; /* has a `==` */
        interned = interned && PyUnicode_CHECK_INTERNED(key);
    }
    for (i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(with[P_NAMES], i), *value = NULL, *pair;
        switch (kinds[i]) {
        case VAR_POSITIONAL:
            WITHOUT_COLLECTOR(
                value = PyTuple_New(n_args > n_positional ? n_args - n_positional : 0));
            if (value == NULL) return FAILED;
            for (Py_ssize_t j = 0; n_positional < n_args; j++)
                PyTuple_SET_ITEM(value, j, Py_NewRef(args[n_positional++]));
            values[i] = value;
            continue;
        case VAR_KEYWORD:
            WITHOUT_COLLECTOR(value = PyDict_New());
            if (value == NULL) return FAILED;
            values[i] = value;
            for (Py_ssize_t j = 0; j < n_keywords; j++) {
                PyObject *key = PyTuple_GET_ITEM(kwnames, j);
                int known = 0;
                for (Py_ssize_t k = 0; k < n && !known; k++) {
                    if (kinds[k] == POSITIONAL || kinds[k] == KEYWORD_ONLY)
                        known = is_name(key, PyTuple_GET_ITEM(with[P_NAMES], k), interned);
                }
                if (known) continue;
                if (PyDict_SetItem(value, key, args[n_args + j]) < 0) return FAILED;
                n_used++;
            }
            continue;
        case POSITIONAL_ONLY:
        case POSITIONAL:
            if (n_positional < n_args) value = args[n_positional++];
            break;
        default:
            break;
        }
        if (kinds[i] != POSITIONAL_ONLY && n_used < n_keywords) {
            Py_ssize_t j = find_keyword(kwnames, n_keywords, name, last, interned);
            if (j < n_keywords) {
                if (value != NULL) return NOT_PLAIN; /* given twice */
                value = args[n_args + j];
                last = j;
                n_used++;
            }
        }
        if (value == NULL) {
            pair = PyTuple_GET_ITEM(with[P_DEFAULTS], i);
            if (pair == Py_None || !default_is_current(with, i, pair, &position))
                return NOT_PLAIN;
            value = PyTuple_GET_ITEM(pair, 0);
        }
        values[i] = Py_NewRef(value);
    }
    return n_positional == n_args && n_used == n_keywords ? BOUND : NOT_PLAIN;
}

/* Like `bind`, but in Python. */
static int bind_in_python(Callable *self, PyObject *const *args, size_t nargsf,
                          PyObject *kwnames, PyObject **values, Py_ssize_t n) {
    Py_ssize_t n_args = PyVectorcall_NARGS(nargsf);
    Py_ssize_t n_keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    PyObject *held; /* `functools.partial` does not hold what it passes */
    WITHOUT_COLLECTOR(held = tuple_of(args, n_args + n_keywords));
    if (held == NULL) return FAILED;
    for (Py_ssize_t i = 0; i < n; i++) Py_CLEAR(values[i]);
    PyObject *renewed = PyObject_CallMethodNoArgs((PyObject *)self, s_renew_binding);
    PyObject *binder = NULL;
    if (renewed != NULL && self->prepared != NULL)
        binder = Py_NewRef(PyTuple_GET_ITEM(self->prepared, P_BINDER));
    else if (renewed != NULL)
        PyErr_SetString(PyExc_TypeError, "not a jitted function any more");
    Py_XDECREF(renewed);
    PyObject *bound = NULL;
    if (binder != NULL)
        bound = PyObject_Vectorcall(binder, ((PyTupleObject *)held)->ob_item, n_args, kwnames);
    Py_XDECREF(binder);
    Py_DECREF(held);
    if (bound == NULL) return FAILED;
    int fits = PyTuple_GET_SIZE(bound) == n;
    if (!fits) /* another `__code__` */
        PyErr_SetString(PyExc_TypeError, "a jitted function has got other parameters");
    for (Py_ssize_t i = 0; fits && i < n; i++)
        values[i] = Py_NewRef(PyTuple_GET_ITEM(bound, i));
    Py_DECREF(bound);
    return fits ? BOUND : FAILED;
}

/* Puts an exception back after Python had a look at it, unless that was interrupted. */
static void restore(PyObject *type, PyObject *error, PyObject *traceback) {
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception)) { /* Ctrl-C */
        Py_XDECREF(type);
        Py_XDECREF(error);
        Py_XDECREF(traceback);
    } else {
        PyErr_Restore(type, error, traceback);
    }
}

/* Lets Python explain the exception that is set. */
static void translate(PyObject *function) {
    PyObject *type, *error, *traceback, *better = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    better = PyObject_CallMethodOneArg(function, s_translate, error);
    if (better == NULL || better == Py_None) {
        Py_XDECREF(better);
        restore(type, error, traceback);
        return;
    }
    /* `raise better from None` */
    PyException_SetCause(better, NULL);
    PyObject_SetAttrString(better, "__suppress_context__", Py_True);
    PyErr_SetObject((PyObject *)Py_TYPE(better), better);
    Py_DECREF(better);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
}

/* A compiled function has raised: Python decides what to raise. */
static void call_failed(PyObject *function, Frame *frame) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *call = call_of_frame(frame);
    PyObject *out = call == NULL ? NULL
                                 : PyObject_CallMethodObjArgs(function, s_failed, call,
                                                              error ? error : Py_None, NULL);
    if (out == NULL && !PyErr_ExceptionMatches(PyExc_Exception))
        table_forget(frame->spec); /* as Python does for any call that is interrupted */
    Py_XDECREF(out);
    Py_XDECREF(call);
    restore(type, error, traceback);
}

/* Blocks until a computation is done. All of its results are ready together, unless one
is an argument that an eager transformation returns as it is. Without results, it may read
NumPy's arrays all the same: `block_if` in Python. */
static int block(PyObject *const *arrays, Py_ssize_t n, Walk *w) {
    PyObject *out = NULL;
    if (n && !w->tracer && Py_TYPE(arrays[0]) == array_type) {
        out = PyObject_CallMethodNoArgs(arrays[0], s_block_until_ready);
    } else {
        PyObject *results = list_of(arrays, n);
        int with = w->tracer || n == 0;
        PyObject *arguments = list_of(w->arrays + 1, with ? w->n_arrays : 0);
        if (results != NULL && arguments != NULL)
            out = PyObject_CallFunctionObjArgs(py_block, results, arguments, NULL);
        Py_XDECREF(results);
        Py_XDECREF(arguments);
    }
    Py_XDECREF(out);
    return out == NULL ? -1 : 0;
}

/* Replaces NumPy arrays by copies if they are small (`copied` in Python). */
static int copy_numpy(Walk *w) {
    Py_ssize_t bytes = 0;
    for (size_t i = 1; i <= w->n_arrays; i++) {
        PyTypeObject *type = Py_TYPE(w->arrays[i]);
        if (type == array_type) continue;
        if (type != numpy_type) {
            if (PyType_IsSubtype(type, numpy_type)) return 0;
            continue;
        }
        PyObject *size = PyObject_GetAttr(w->arrays[i], s_nbytes);
        Py_ssize_t more = size == NULL ? 0 : PyLong_AsSsize_t(size);
        Py_XDECREF(size);
        if (PyErr_Occurred()) return -1;
        /* The size of a broadcast array may overflow. */
        if (more > copied_bytes - bytes) return 0;
        bytes += more;
    }
    for (size_t i = 1; i <= w->n_arrays; i++) {
        if (Py_TYPE(w->arrays[i]) != numpy_type) continue;
        PyObject *copy = PyObject_CallMethodNoArgs(w->arrays[i], s_copy);
        if (copy == NULL) return -1;
        Py_SETREF(w->arrays[i], copy);
    }
    w->numpy = NUMPY_COPIED;
    return 0;
}

/* So many calls in a row must have been done when they returned for NumPy's arrays to be
passed as they are; after one that was not, so many are not looked at. */
#define QUICK_CALLS 16
#define SLOW_CALLS 1000

/* Whether JAX traces or transforms in this thread, also if that is not known. */
static int is_inside_trace(void) {
    if (top_level == Py_None) return 1;
    PyObject *const *known = ((PyTupleObject *)top_level)->ob_item;
    PyObject *trace = PyObject_GetAttr(known[0], known[1]);
    if (trace == NULL) PyErr_Clear();
    Py_XDECREF(trace); /* that of no trace is never gone */
    return trace != known[2];
}

/* Whether NumPy's arrays are passed as they are. Not to a trace, without a tracer among the
arguments: they are constants of what is traced, which are read at any time later. */
static int is_in_place(const Spec *spec, const Walk *w) {
    return spec->n_quick == QUICK_CALLS && !w->tracer && !is_inside_trace();
}

/* After a call with NumPy's arrays: what reads them must be done, unless they are copies.
XLA runs small programs before it returns, if their arguments are ready. Those need no
copies, which cost 0.45 us each, of the 2.2 us that JAX takes for such an array. */
static int settle_numpy(Spec *spec, Walk *w, PyObject *const *arrays, Py_ssize_t n) {
    if (w->numpy == NUMPY_COPIED && spec->n_quick < 0) return spec->n_quick++, 0;
    if (n && array_type == NULL && record_of(w, arrays[0]) == NULL) return -1;
    PyObject *ready = Py_False; /* a `bool` */
    if (n && Py_TYPE(arrays[0]) == array_type) {
        if ((ready = PyObject_CallMethodNoArgs(arrays[0], s_is_ready)) == NULL) return -1;
        Py_DECREF(ready);
    } else if (w->numpy == NUMPY_COPIED) {
        return 0;
    }
    spec->n_quick = ready != Py_True                ? -SLOW_CALLS
                    : spec->n_quick < QUICK_CALLS ? spec->n_quick + 1
                                                  : QUICK_CALLS;
    return ready == Py_True || w->numpy == NUMPY_COPIED ? 0 : block(arrays, n, w);
}

/* Whether a call may read memory that NumPy can write to: 1, 0 or -1. */
static int reads_numpy(Walk *w) {
    if (w->numpy == NUMPY_IN_PLACE || !w->tracer) return w->numpy == NUMPY_IN_PLACE;
    PyObject *list = list_of(w->arrays + 1, w->n_arrays);
    PyObject *out = list == NULL ? NULL : PyObject_CallOneArg(py_reads_numpy, list);
    Py_XDECREF(list);
    Py_XDECREF(out); /* a `bool` */
    return out == NULL ? -1 : out == Py_True;
}

/* The result of a call, from the list that the compiled function returned: its arrays,
and the handle of the trace. */
static PyObject *finish(PyObject *function, Frame *frame, Walk *w, PyObject *out) {
    PyObject *result = NULL;
    Py_ssize_t n = PyList_CheckExact(out) ? PyList_GET_SIZE(out) - 1 : -1;
    PyObject *last = n < 0 ? NULL : PyList_GET_ITEM(out, n);
    int eager = last == eager_handle && frame->call != NULL; /* `jax.disable_jit()` */
    if (frame->call != NULL) {
        /* Something was traced or compiled. */
        PyObject *arrays = list_of(w->arrays + 1, w->n_arrays), *done;
        if (arrays == NULL) {
            call_failed(function, frame); /* ends the record */
            return NULL;
        }
        done = PyObject_CallMethodObjArgs(function, s_finished, frame->call, arrays, NULL);
        Py_DECREF(arrays);
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    if (eager) return PyObject_GetAttr(frame->call, s_eager_result);
    Plan *plan = last != NULL && Py_TYPE(last) == &HandleType ? ((Handle *)last)->plan : NULL;
    if (plan == NULL || plan->n_arrays != n) { /* `out_shardings` */
        PyObject *arrays = list_of(w->arrays + 1, w->n_arrays);
        if (arrays == NULL) return NULL;
        result = PyObject_CallMethodObjArgs(function, s_result, (PyObject *)frame->spec, out,
                                            arrays, frame->call ? Py_True : Py_False, NULL);
        Py_DECREF(arrays);
        return result;
    }
    Py_INCREF(plan);
    PyObject *const *arrays = ((PyListObject *)out)->ob_item;
    /* Or compiled: a trace that is known may now run on other devices. */
    if (plan->blocks < 0 || (plan->blocks == 0 && frame->call != NULL)) {
        PyObject *python = PyObject_GetItem(frame->spec->plans, last), *blocks = NULL;
        PyObject *inputs = list_of(w->arrays + 1, w->n_arrays), *results = list_of(arrays, n);
        if (python != NULL && inputs != NULL && results != NULL)
            blocks = PyObject_CallMethodObjArgs(function, s_decide_blocks,
                                                (PyObject *)frame->spec, python, inputs,
                                                results, NULL);
        Py_XDECREF(python);
        Py_XDECREF(inputs);
        Py_XDECREF(results);
        if (blocks == NULL) goto done;
        plan->blocks = blocks == Py_None ? -1 : blocks == Py_True;
        Py_DECREF(blocks);
    }
    if (w->numpy && !w->tracer && plan->blocks <= 0) {
        if (settle_numpy(frame->spec, w, arrays, n) < 0) goto done;
    } else {
        int blocks_now = plan->blocks > 0 ? 1 : reads_numpy(w);
        if (blocks_now < 0 || (blocks_now && block(arrays, n, w) < 0)) goto done;
    }
    result = plan_build(plan, arrays);
done:
    Py_DECREF(plan);
    return result;
}

/* A specialization that Python creates, or another thread has just created; NULL without an
error if there is to be none. */
static Spec *specialize(PyObject *function, Table *table, Walk *w, uint64_t hash,
                        PyObject *const *values, Py_ssize_t n) {
    own_everything(w);
    PyObject *tuple = tuple_of(values, n), *made;
    if (tuple == NULL) return NULL;
    made = PyObject_CallMethodOneArg(function, s_miss, tuple);
    Py_DECREF(tuple);
    if (made == NULL) return NULL;
    if (made == Py_None) { /* `jax.disable_jit()` */
        Py_DECREF(made);
        return NULL;
    }
    if (Py_TYPE(made) != &SpecType || ((Spec *)made)->jitted == NULL) {
        PyErr_SetString(PyExc_TypeError, "expected a specialization");
        Py_DECREF(made);
        return NULL;
    }
    Spec *found = table_find(table, w, hash);
    if (found != NULL || PyErr_Occurred() || table_add(table, (Spec *)made, w, hash) < 0) {
        Py_DECREF(made);
        return found;
    }
    return (Spec *)made;
}

/* Finds the specialization for a walk, or creates it if there is a function: a new
reference. */
static Spec *look_up(PyObject *function, Table *table, Walk *w, PyObject *const *values,
                     Py_ssize_t n) {
    uint64_t hash = 0;
    Spec *spec = table_same_as_last(table, w);
    if (spec == NULL) {
        /* What was not read again may have a `==` in Python. */
        if (w->unread) own_everything(w);
        hash = hash_trail(w);
        spec = table_find(table, w, hash);
        if (spec == NULL && PyErr_Occurred()) return NULL;
    }
    if (spec != NULL && spec->witnesses != NULL) {
        int stale = is_stale(spec, w);
        if (stale) {
            hash = spec->hash;
            table_forget(spec);
            Py_CLEAR(spec);
        }
        if (stale < 0) return NULL;
    }
    if (spec != NULL || function == NULL) return spec;
    return specialize(function, table, w, hash, values, n);
}

/* A call that the walk makes nothing of: the reference says what is wrong with it, or
does better. Or one without jit. */
static PyObject *call_in_python(PyObject *function, PyObject *const *values, Py_ssize_t n) {
    PyObject *tuple = tuple_of(values, n), *result = NULL;
    if (tuple == NULL) return NULL;
    result = PyObject_CallMethodOneArg(function, s_call, tuple);
    Py_DECREF(tuple);
    if (result == NULL) {
        translate(function);
        n_explained++;
    }
    return result;
}

/* Whether the walks of this thread that run Python are as many as fit on the stack. */
static int is_too_deep(void) {
    if (n_nested < MOST_NESTED) return 0;
    PyErr_SetString(PyExc_RecursionError, "maximum recursion depth exceeded while the "
                                          "arguments of jitted functions are read");
    return 1;
}

/* Reads bound arguments, for a look-up in a table. */
static int walk_values(Walk *w, const Table *table, PyObject *const *values, Py_ssize_t n) {
    int failed = drop_records_if_grown();
    walk_init(w);
    w->limit += table->longest;
    if (table->last != NULL) {
        w->last = Py_NewRef((PyObject *)table->last);
        w->last_trail = table->last->trail;
        w->n_last = table->last->n_trail;
        w->known = table->last->known;
        w->n_known = table->last->n_known;
    }
    for (Py_ssize_t i = 0; i < n && failed == 0; i++) failed = walk_tree(w, values[i]);
    return failed;
}

/* Whether the error of a walk stays, and Python does not try. What the user's code raises
because a call in it did is not tried twice on each level, nor is recursion: of a thousand
levels, that would never end. */
static int is_final(const Walk *w) {
    return (w->owning && w->n_explained != n_explained) ||
           !PyErr_ExceptionMatches(PyExc_Exception) ||
           PyErr_ExceptionMatches(PyExc_RecursionError);
}

/* A call has returned inside of another, which may be tracing: 0 for an error. */
static int tell_outer(PyObject *function, const Frame *frame, PyObject *out) {
    PyObject *mutable = mutables_of(frame->walk), *told = NULL, *handle = Py_None;
    /* Not the list, which a profiler would see. (A tuple with `out_shardings`.) */
    Py_ssize_t n = PyList_CheckExact(out) || PyTuple_CheckExact(out) ? Py_SIZE(out) : 0;
    if (n > 0) handle = PySequence_Fast_GET_ITEM(out, n - 1);
    if (mutable != NULL)
        told = PyObject_CallMethodObjArgs(function, s_tell_outer, (PyObject *)frame->spec,
                                          handle, mutable, NULL);
    Py_XDECREF(mutable);
    Py_XDECREF(told);
    return told != NULL;
}

/* A call with bound arguments. */
static PyObject *call_bound(PyObject *function, Table *table, PyObject *const *values,
                            Py_ssize_t n) {
    Walk walk, *w = &walk;
    PyObject *result = NULL;
    Spec *spec = NULL;
    if (is_too_deep()) return NULL;
    if (walk_values(w, table, values, n) < 0) {
        int final = is_final(w);
        walk_free(w);
        if (final) return NULL;
        PyErr_Clear();
        return call_in_python(function, values, n);
    }
    spec = look_up(function, table, w, values, n);
    if (spec == NULL) {
        if (PyErr_Occurred()) goto done;
        walk_free(w);
        return call_in_python(function, values, n);
    }
    if (w->n_tops && (PyObject *)spec == w->last) {
        if (spec->known == NULL &&
            (spec->known = PyMem_Calloc(w->n_tops, sizeof(Known))) != NULL)
            spec->n_known = w->n_tops;
        if (spec->n_known == w->n_tops &&
            learn_tops(spec->known, w, spec->trail, spec->n_trail) < 0)
            goto done;
    }
    keep_mutables(w);
    end_nested(w);
    if (w->numpy && !is_in_place(spec, w) && copy_numpy(w) < 0) goto done;
    Frame frame = {.function = function, .spec = spec, .values = values, .n_values = n,
                   .walk = w};
    enter_frame(&frame);
    PyObject *out = PyObject_Vectorcall(spec->jitted, w->arrays + 1,
                                        w->n_arrays | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    leave_frame(&frame);
    if (out != NULL && PyList_CheckExact(out)) {
        /* A profiler is shown what Python returns, and may keep it and change it. */
        if (Py_REFCNT(out) != 1) {
            PyObject *copy;
            WITHOUT_COLLECTOR(copy = PyList_GetSlice(out, 0, PyList_GET_SIZE(out)));
            Py_SETREF(out, copy);
        }
        /* What else runs must not find it by `gc.get_objects()` and change it. */
        if (out != NULL) PyObject_GC_UnTrack(out);
    }
    int told = out != NULL;
    if (told && innermost.frame != NULL && spec->witnesses != NULL)
        told = tell_outer(function, &frame, out);
    if (told)
        result = finish(function, &frame, w, out);
    else
        call_failed(function, &frame);
    Py_XDECREF(out);
    Py_XDECREF(frame.call);
done:
    if (result == NULL) translate(function);
    Py_XDECREF(spec);
    walk_free(w);
    return result;
}

/* The specialization for a call, without the call: `table.get(function, values)`. */
static PyObject *table_get(Table *self, PyObject *args) {
    PyObject *function, *values;
    Walk w;
    Spec *spec = NULL;
    if (!PyArg_ParseTuple(args, "OO!", &function, &PyTuple_Type, &values)) return NULL;
    if (is_too_deep()) return NULL;
    PyObject *const *items = ((PyTupleObject *)values)->ob_item;
    Py_ssize_t n = PyTuple_GET_SIZE(values);
    if (walk_values(&w, self, items, n) == 0) spec = look_up(function, self, &w, items, n);
    walk_free(&w);
    if (spec == NULL && !PyErr_Occurred()) Py_RETURN_NONE; /* Python has one instead */
    return (PyObject *)spec;
}

/* The arrays of a call that is one of a specialization: `table.arrays_of(specialization,
values, otherwise)`. For others, what a function in Python returns. */
static PyObject *table_arrays_of(Table *self, PyObject *args) {
    PyObject *expected, *values, *otherwise, *arrays = NULL;
    Walk w;
    if (!PyArg_ParseTuple(args, "OO!O", &expected, &PyTuple_Type, &values, &otherwise))
        return NULL;
    if (is_too_deep()) return NULL;
    PyObject *const *items = ((PyTupleObject *)values)->ob_item;
    Py_ssize_t n = PyTuple_GET_SIZE(values);
    if (walk_values(&w, self, items, n) == 0) {
        Spec *spec = look_up(NULL, self, &w, items, n);
        if ((PyObject *)spec == expected) arrays = list_of(w.arrays + 1, w.n_arrays);
        Py_XDECREF(spec);
    }
    int final = arrays == NULL && PyErr_Occurred() && is_final(&w);
    walk_free(&w);
    if (arrays != NULL || final) return arrays;
    PyErr_Clear();
    arrays = PyObject_CallOneArg(otherwise, values);
    if (arrays == NULL) n_explained++;
    return arrays;
}

/* Reads bound arguments, without a table. */
static int walk_tuple(Walk *w, PyObject *values) {
    walk_init(w);
    if (!PyTuple_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of bound values");
        return -1;
    }
    if (is_too_deep()) return -1;
    int failed = drop_records_if_grown();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && failed == 0; i++)
        failed = walk_tree(w, PyTuple_GET_ITEM(values, i));
    return failed;
}

static PyObject *spec_matches(Spec *self, PyObject *values) {
    Walk w;
    int same = walk_tuple(&w, values);
    if (same == 0) {
        own_everything(&w);
        same = same_trail(w.trail, w.n_trail, self->trail, self->n_trail);
    }
    walk_free(&w);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

#define SMALL_VALUES 12

static PyObject *callable_call(Callable *self, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    PyObject *small[SMALL_VALUES + 1] = {NULL}, **values = small, *result = NULL;
    if (self->python_call != NULL) {
        if (Py_EnterRecursiveCall(" in a jitted function")) return NULL; /* of itself */
        PyObject *call = Py_NewRef(self->python_call);
        result = PyObject_Vectorcall(call, args, nargsf, kwnames);
        Py_DECREF(call);
        Py_LeaveRecursiveCall();
        return result;
    }
    if (self->prepared == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a jitted function yet");
        return NULL;
    }
    Py_INCREF(self); /* `functools.partial` does not hold what it calls */
    PyObject *prepared = Py_NewRef(self->prepared);
    PyObject *const *with = ((PyTupleObject *)prepared)->ob_item;
    Py_ssize_t n = PyTuple_GET_SIZE(with[P_NAMES]), fun_index = self->fun_index;
    if (n > SMALL_VALUES &&
        (values = PyMem_Calloc(n + 1, sizeof(PyObject *))) == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    int bound = bind(with, args, PyVectorcall_NARGS(nargsf), kwnames, values);
    if (bound == NOT_PLAIN) bound = bind_in_python(self, args, nargsf, kwnames, values, n);
    if (bound == BOUND) {
        if (fun_index >= 0) {
            memmove(values + fun_index + 1, values + fun_index,
                    (n - fun_index) * sizeof(PyObject *));
            values[fun_index] = Py_NewRef(with[P_FUN]);
            n++;
        }
        result = call_bound(with[P_FUNCTION], (Table *)with[P_TABLE], values, n);
    }
    for (Py_ssize_t i = 0; i < n; i++) Py_XDECREF(values[i]);
    if (values != small) PyMem_Free(values);
done:
    Py_DECREF(prepared);
    Py_DECREF(self);
    return result;
}

static PyObject *callable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)args;
    (void)kwargs;
    Callable *self = (Callable *)type->tp_alloc(type, 0);
    if (self != NULL) self->vectorcall = (vectorcallfunc)callable_call;
    return (PyObject *)self;
}

static PyObject *callable_prepare(Callable *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"python_call", "function", "table",   "fun",
                               "fun_index",   "names",    "kinds",   "defaults",
                               "binder",      "source",   "positional", NULL};
    PyObject *python_call, *function = NULL, *table = NULL, *fun = NULL, *names = NULL,
                           *kinds = NULL, *defaults = NULL, *binder = NULL, *source = NULL,
                           *positional = NULL;
    Py_ssize_t fun_index = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO!OnO!SO!OOO", keywords, &python_call,
                                     &function, &TableType, &table, &fun, &fun_index,
                                     &PyTuple_Type, &names, &kinds, &PyTuple_Type, &defaults,
                                     &binder, &source, &positional))
        return NULL;
    PyObject *prepared = NULL;
    if (python_call == Py_None) {
        python_call = NULL;
        int given = function && table && fun && names && kinds && defaults && binder &&
                    source && positional;
        if (!given || PyBytes_GET_SIZE(kinds) != PyTuple_GET_SIZE(names) ||
            PyTuple_GET_SIZE(defaults) != PyTuple_GET_SIZE(names) ||
            (source != Py_None && !PyFunction_Check(source)) ||
            fun_index > PyTuple_GET_SIZE(names)) {
            PyErr_SetString(PyExc_TypeError, "_prepare: arguments are missing");
            return NULL;
        }
        prepared = PyTuple_Pack(9, function, table, fun, names, kinds, defaults, binder,
                                source, positional);
        if (prepared == NULL) return NULL;
    }
    PyObject *old_call = self->python_call, *old = self->prepared;
    self->python_call = Py_XNewRef(python_call);
    self->prepared = prepared;
    self->fun_index = fun_index;
    Py_XDECREF(old_call);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

static PyMethodDef callable_methods[] = {
    {"_prepare", (PyCFunction)(void (*)(void))callable_prepare, METH_VARARGS | METH_KEYWORDS,
     "Say what is called, and how arguments are bound."},
    {NULL}};

static PyTypeObject CallableType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "eqx_fastjit._native.Callable",
    .tp_doc = "Calls a jitted function.",
    .tp_basicsize = sizeof(Callable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = callable_new,
    .tp_dealloc = (destructor)callable_dealloc,
    .tp_traverse = (traverseproc)callable_traverse,
    .tp_clear = (inquiry)callable_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(Callable, vectorcall),
    .tp_methods = callable_methods,
};

/* --- the module ------------------------------------------------------------------------- */

/* A class in Python inherits neither flag, or the first since Python 3.12: 0.15 us a call.
By the second, `instance.method(x)` calls what the class has with the instance, as a function
is called: what a method is bound to takes 2 to 3 us to make. */
static PyObject *call_directly(PyObject *self, PyObject *cls) {
    (void)self;
    if (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, &CallableType) ||
        ((PyTypeObject *)cls)->tp_call != PyVectorcall_Call) {
        PyErr_SetString(PyExc_TypeError, "expected a subclass of Callable");
        return NULL;
    }
    ((PyTypeObject *)cls)->tp_flags |=
        Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR;
    PyType_Modified((PyTypeObject *)cls);
    Py_RETURN_NONE;
}

static PyObject *setup(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"registry", "function_types", "wrapper_names", "numpy_type",
                            "treedef_type", "classify", "policy_of", "opaque_key",
                            "array_key", "sort_keys", "check_ends", "call_class", "block",
                            "reads_numpy", "eager_handle", "array_class", "missing",
                            "top_level", "copied_bytes", NULL};
    PyObject **places[] = {&registry,      &function_types, &wrapper_names,
                           (PyObject **)&numpy_type, (PyObject **)&treedef_type,
                           &py_classify,   &py_policy_of,   &py_opaque_key,
                           &py_array_key,  &py_sort_keys,   &py_check_ends,
                           &py_call_class, &py_block,       &py_reads_numpy,
                           &eager_handle,  &array_class,    &missing,
                           &top_level};
    enum { CALL_CLASS = 11 };
    /* Not `Py_ARRAY_LENGTH`, which is no constant expression on Python 3.13. */
    PyObject *given[sizeof(places) / sizeof(*places)] = {NULL};
    Py_ssize_t copied = -1;
    /* The static variables belong to one interpreter. */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "not in a subinterpreter");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$O!O!O!O!O!OOOOOOOOOOOOOn", names, &PyDict_Type, &given[0],
            &PyTuple_Type, &given[1], &PyTuple_Type, &given[2], &PyType_Type, &given[3],
            &PyType_Type, &given[4], &given[5], &given[6], &given[7], &given[8], &given[9],
            &given[10], &given[11], &given[12], &given[13], &given[14], &given[15],
            &given[16], &given[17], &copied))
        return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(places); i++)
        if (given[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "setup() needs %s", names[i]);
            return NULL;
        }
    if (copied < 0) {
        PyErr_SetString(PyExc_TypeError, "setup() needs copied_bytes");
        return NULL;
    }
    if (py_call_class != NULL && py_call_class != given[CALL_CLASS]) {
        /* `sys.modules` was emptied. Functions of the earlier import are still called. */
        PyErr_SetString(PyExc_ImportError, "an earlier import of eqx_fastjit has it");
        return NULL;
    }
    for (size_t i = 0; i < Py_ARRAY_LENGTH(places); i++)
        Py_XSETREF(*places[i], Py_NewRef(given[i]));
    copied_bytes = copied;
    n_registered = -1;
    Py_RETURN_NONE;
}

/* Only the walk, for `insight.breakdown`: the arrays of bound values. */
static PyObject *arrays_of(PyObject *self, PyObject *values) {
    (void)self;
    Walk w;
    int failed = walk_tuple(&w, values);
    PyObject *arrays = failed < 0 ? NULL : list_of(w.arrays + 1, w.n_arrays);
    walk_free(&w);
    return arrays;
}

static PyMethodDef functions[] = {
    {"arrays_of", arrays_of, METH_O, "The arrays of bound values, in JAX's order."},
    {"setup", (PyCFunction)(void (*)(void))setup, METH_VARARGS | METH_KEYWORDS,
     "Take what is left to Python."},
    {"call_directly", call_directly, METH_O, "Have a subclass called directly."},
    {"innermost_call", innermost_call, METH_NOARGS, "The call this thread is in, or None."},
    {"find_call", find_call, METH_O, "The innermost call that a function is traced for."},
    {"flatten_handle", flatten_handle, METH_O, NULL},
    {"unflatten_handle", (PyCFunction)(void (*)(void))unflatten_handle, METH_FASTCALL, NULL},
    {NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "eqx_fastjit._native",
    .m_doc = "The compiled engine.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void) {
    struct { PyObject **place; const char *text; } strings[] = {
        {&s_block_until_ready, "block_until_ready"}, {&s_miss, "miss"}, {&s_call, "call"},
        {&s_finished, "finished"}, {&s_failed, "failed"}, {&s_translate, "translate"},
        {&s_result, "result"}, {&s_decide_blocks, "decide_blocks"},
        {&s_renew_binding, "_renew_binding"}, {&s_flat, "flat"},
        {&s_specialization, "specialization"}, {&s_eager_result, "eager_result"},
        {&s_nbytes, "nbytes"}, {&s_copy, "copy"}, {&s_is_ready, "is_ready"},
        {&s_shape, "shape"}, {&s_tell_outer, "tell_outer"},
        {&s_getstate, "__getstate__"}, {&s_default_factory, "default_factory"},
        {&s_build, "build"}, {&s_steps, "steps"}, {&s_native, "native"}};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++)
        if ((*strings[i].place = PyUnicode_InternFromString(strings[i].text)) == NULL)
            return NULL;
    if ((plain_treedefs = PyDict_New()) == NULL) return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m == NULL) return NULL;
    struct { PyTypeObject *type; const char *name; } types[] = {
        {&SpecType, "Specialization"}, {&TableType, "Table"}, {&PlanType, "Plan"},
        {&HandleType, "Handle"}, {&CallingType, "Calling"}, {&CallableType, "Callable"}};
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
        if (PyType_Ready(types[i].type) < 0 ||
            PyModule_AddObjectRef(m, types[i].name, (PyObject *)types[i].type) < 0) {
            Py_DECREF(m);
            return NULL;
        }
    return m;
}
