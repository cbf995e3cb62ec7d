/* Specializations of one function, by signature. */

#include "fastjit.h"

/* Reads what Python passes: `(values, abstract)`, of which the first are bound values. */
static Walk *walk_over(PyObject *self, PyObject *args) {
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &fastjit_module), *values;
    int abstract;
    if (module == NULL || !PyArg_ParseTuple(args, "O!p", &PyTuple_Type, &values, &abstract))
        return NULL;
    Walk *w = walk_take(PyModule_GetState(module));
    if (w == NULL) return NULL;
    w->abstract = abstract;
    if (read_values(w, values) == 0) return w;
    walk_give_back(w);
    return NULL;
}

/* --- a specialization ------------------------------------------------------------------- */

static int specialization_traverse(Specialization *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->jitted);
    Py_VISIT(self->flat);
    for (size_t i = 0; i < self->n_trail; i++) Py_VISIT(entry_object(&self->trail[i]));
    for (size_t i = 0; i < self->n_witnesses; i++) Py_VISIT(self->witnesses[i].object);
    return 0;
}

static int specialization_clear(Specialization *self) {
    Entry *trail = self->trail;
    Mutable *witnesses = self->witnesses;
    size_t n_trail = self->n_trail, n_witnesses = self->n_witnesses;
    self->trail = NULL;
    self->witnesses = NULL;
    self->n_trail = self->n_witnesses = 0;
    Py_CLEAR(self->flat);
    Py_CLEAR(self->jitted);
    for (size_t i = 0; i < n_trail; i++) Py_XDECREF(entry_object(&trail[i]));
    for (size_t i = 0; i < n_witnesses; i++) Py_DECREF(witnesses[i].object);
    PyMem_Free(trail);
    PyMem_Free(witnesses);
    return 0;
}

static void specialization_dealloc(Specialization *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    specialization_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* Gives it the signature of a walk, and what the walk owned. */
static int specialization_set(Specialization *self, Walk *w) {
    self->trail = PyMem_Malloc((w->n_trail + 1) * sizeof(Entry));
    self->witnesses = PyMem_Malloc((w->n_mutables + 1) * sizeof(Mutable));
    if (self->trail == NULL || self->witnesses == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < w->n_trail; i++) self->trail[i] = w->trail[i];
    for (size_t i = 0; i < w->n_mutables; i++) self->witnesses[i] = w->mutables[i];
    self->n_trail = w->n_trail;
    self->n_witnesses = w->n_mutables;
    self->hash = trail_hash(w->trail, w->n_trail);
    w->n_trail = w->n_mutables = 0;
    return 0;
}

/* `Specialization(values, abstract)`, for such a call. Python sets the rest. */
static PyObject *specialization_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    Specialization *self = (Specialization *)type->tp_alloc(type, 0);
    Walk *w = self == NULL ? NULL : walk_over((PyObject *)self, args);
    if (w == NULL || specialization_set(self, w) < 0) Py_CLEAR(self);
    if (w != NULL) walk_give_back(w);
    return (PyObject *)self;
}

/* `is_of(values, abstract)`: whether it is for such a call. */
static PyObject *specialization_is_of(Specialization *self, PyObject *args) {
    Walk *w = walk_over((PyObject *)self, args);
    if (w == NULL) return NULL;
    int same = trail_same(w->trail, w->n_trail, self->trail, self->n_trail);
    walk_give_back(w);
    return same < 0 ? NULL : PyBool_FromLong(same);
}

/* Whether a static that it was made with has been changed since: 1, 0 or -1. If the call has
the same object, its present state was just compared. (Equal trails have equally many parts
that can be changed, unless an object was given another class.) */
static int is_stale(Specialization *self, Walk *w) {
    if (w->n_mutables != self->n_witnesses) return 1;
    for (size_t i = 0; i < self->n_witnesses; i++) {
        const Mutable *then = &self->witnesses[i];
        if (w->mutables[i].object == then->object) continue;
        Walk *now = walk_take(w->state);
        if (now == NULL) return -1;
        int same = -1;
        if (read_value(now, then->object, 1) == 0)
            same = trail_same(now->trail, now->n_trail, self->trail + then->start,
                              then->stop - then->start);
        walk_give_back(now);
        if (same < 0 && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        PyErr_Clear(); /* one that cannot be read any more has changed, too */
        if (same != 1) return 1;
    }
    return 0;
}

static PyMemberDef specialization_members[] = {
    {"jitted", T_OBJECT_EX, offsetof(Specialization, jitted), 0, NULL},
    {"flat", T_OBJECT_EX, offsetof(Specialization, flat), 0, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Specialization, weakrefs), READONLY, NULL},
    {NULL}};

static PyMethodDef specialization_methods[] = {
    {"is_of", (PyCFunction)specialization_is_of, METH_VARARGS,
     "Whether it is for such a call."},
    {NULL}};

static PyType_Slot specialization_slots[] = {
    {Py_tp_doc, "What is compiled for one signature of one function."},
    {Py_tp_new, specialization_new},
    {Py_tp_dealloc, specialization_dealloc},
    {Py_tp_traverse, specialization_traverse},
    {Py_tp_clear, specialization_clear},
    {Py_tp_members, specialization_members},
    {Py_tp_methods, specialization_methods},
    {0, NULL}};

PyType_Spec specialization_spec = {
    "eqx_fastjit._native.Specialization", sizeof(Specialization), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, specialization_slots};

/* --- a table ---------------------------------------------------------------------------- */

static int table_clear(Table *self) {
    self->n_items = 0;
    Py_CLEAR(self->last);
    if (self->items != NULL) PyDict_Clear(self->items);
    return 0;
}

/* Those with a hash: a list, a new reference; NULL if there are none, or with an error. */
static PyObject *bucket_of(Table *self, PyObject *hash) {
    return hash == NULL ? NULL : Py_XNewRef(PyDict_GetItemWithError(self->items, hash));
}

/* Drops a specialization, if it is in the table. */
int table_remove(Table *self, Specialization *specialization) {
    if (self->last == specialization) Py_CLEAR(self->last);
    PyObject *hash = PyLong_FromUnsignedLongLong(specialization->hash);
    PyObject *bucket = bucket_of(self, hash);
    int failed = bucket == NULL && PyErr_Occurred() ? -1 : 0;
    for (Py_ssize_t i = bucket == NULL ? 0 : PyList_GET_SIZE(bucket); i-- > 0 && !failed;) {
        if (PyList_GET_ITEM(bucket, i) != (PyObject *)specialization) continue;
        failed = PySequence_DelItem(bucket, i);
        self->n_items--;
        if (!failed && PyList_GET_SIZE(bucket) == 0) failed = PyDict_DelItem(self->items, hash);
    }
    Py_XDECREF(bucket);
    Py_XDECREF(hash);
    return failed;
}

/* The specialization for a walk, a new reference; NULL if there is none, or an error. */
Specialization *table_find(Table *self, Walk *w) {
    Specialization *found = (Specialization *)Py_XNewRef((PyObject *)self->last);
    /* Most calls are like the one before, and need no hash. */
    if (found != NULL && found->n_trail == w->n_trail &&
        trail_identical(found->trail, w->trail, w->n_trail) && is_stale(found, w) == 0)
        return found;
    Py_CLEAR(found);
    if (PyErr_Occurred()) return NULL;
    PyObject *hash = PyLong_FromUnsignedLongLong(trail_hash(w->trail, w->n_trail));
    PyObject *bucket = bucket_of(self, hash);
    Py_XDECREF(hash);
    if (bucket == NULL) return NULL;
    int same = 0;
    /* Somebody's `==` may make a call, which may change the list. */
    for (Py_ssize_t i = 0; same == 0 && i < PyList_GET_SIZE(bucket); i++) {
        Py_XSETREF(found, (Specialization *)Py_NewRef(PyList_GET_ITEM(bucket, i)));
        same = trail_same(w->trail, w->n_trail, found->trail, found->n_trail);
    }
    Py_DECREF(bucket);
    int stale = same == 1 ? is_stale(found, w) : 0;
    if (stale == 1) table_remove(self, found);
    if (same == 1 && stale == 0) {
        Py_XSETREF(self->last, (Specialization *)Py_NewRef((PyObject *)found));
        return found;
    }
    Py_XDECREF(found);
    return NULL;
}

static int table_traverse(Table *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->items);
    Py_VISIT(self->last);
    return 0;
}

static void table_dealloc(Table *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    table_clear(self);
    Py_XDECREF(self->items);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int table_init(Table *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"capacity", NULL};
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &capacity)) return -1;
    Py_XSETREF(self->items, PyDict_New());
    self->capacity = capacity;
    return self->items == NULL ? -1 : 0;
}

/* `find(values, abstract)`: the specialization, or `None`; the arrays; and whether any is
the user's own, of NumPy. */
static PyObject *table_find_method(Table *self, PyObject *args) {
    Walk *w = walk_over((PyObject *)self, args);
    if (w == NULL) return NULL;
    PyObject *found = (PyObject *)table_find(self, w), *out = NULL;
    if ((found != NULL || !PyErr_Occurred()) && copy_numpy(w) == 0)
        out = Py_BuildValue("(ONN)", found ? found : Py_None, tuple_of(w->arrays, w->n_arrays),
                            PyBool_FromLong(w->reads_numpy));
    Py_XDECREF(found);
    walk_give_back(w);
    return out;
}

/* `arrays(values, abstract)`: those of a call, as it would read them. */
static PyObject *table_arrays_method(Table *self, PyObject *args) {
    Walk *w = walk_over((PyObject *)self, args);
    if (w == NULL) return NULL;
    PyObject *arrays = tuple_of(w->arrays, w->n_arrays);
    walk_give_back(w);
    return arrays;
}

/* A table that is full is emptied. */
static PyObject *table_add_method(Table *self, PyObject *added) {
    if (self->n_items >= self->capacity) table_clear(self);
    PyObject *hash = PyLong_FromUnsignedLongLong(((Specialization *)added)->hash);
    PyObject *none = PyList_New(0), *bucket = NULL;
    if (hash != NULL && none != NULL) bucket = PyDict_SetDefault(self->items, hash, none);
    int failed = bucket == NULL || PyList_Append(bucket, added) < 0;
    self->n_items += !failed;
    Py_XDECREF(hash);
    Py_XDECREF(none);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_clear_method(Table *self, PyObject *unused) {
    (void)unused;
    table_clear(self);
    Py_RETURN_NONE;
}

static PyObject *table_remove_method(Table *self, PyObject *x) {
    if (table_remove(self, (Specialization *)x) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef table_methods[] = {
    {"find", (PyCFunction)table_find_method, METH_VARARGS,
     "The specialization for bound values, if there is one, and their arrays."},
    {"arrays", (PyCFunction)table_arrays_method, METH_VARARGS, "The arrays of bound values."},
    {"add", (PyCFunction)table_add_method, METH_O, "Keep a specialization."},
    {"clear", (PyCFunction)table_clear_method, METH_NOARGS, "Drop all."},
    {"remove", (PyCFunction)table_remove_method, METH_O, "Drop one, if it is in the table."},
    {NULL}};

static PyType_Slot table_slots[] = {
    {Py_tp_doc, "The specializations of one function, by signature."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, table_init},
    {Py_tp_dealloc, table_dealloc},
    {Py_tp_traverse, table_traverse},
    {Py_tp_clear, table_clear},
    {Py_tp_methods, table_methods},
    {0, NULL}};

PyType_Spec table_spec = {
    "eqx_fastjit._native.Table", sizeof(Table), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, table_slots};
