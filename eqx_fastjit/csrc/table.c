/* Specializations of one function, by signature. */

#include "fastjit.h"

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
    specialization_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int specialization_init(Specialization *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"jitted", "flat", NULL};
    PyObject *jitted, *flat;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &jitted, &flat)) return -1;
    Py_XSETREF(self->jitted, Py_NewRef(jitted));
    Py_XSETREF(self->flat, Py_NewRef(flat));
    return 0;
}

/* Gives it the signature of a walk. */
static int specialization_set(Specialization *self, Walk *w, uint64_t hash) {
    Entry *trail = PyMem_Malloc((w->n_trail + 1) * sizeof(Entry));
    Mutable *witnesses = PyMem_Malloc((w->n_mutables + 1) * sizeof(Mutable));
    if (trail == NULL || witnesses == NULL) {
        PyMem_Free(trail);
        PyMem_Free(witnesses);
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < w->n_trail; i++) {
        trail[i] = w->trail[i];
        Py_XINCREF(entry_object(&trail[i]));
    }
    for (size_t i = 0; i < w->n_mutables; i++) {
        witnesses[i] = w->mutables[i];
        Py_INCREF(witnesses[i].object);
    }
    self->trail = trail;
    self->n_trail = w->n_trail;
    self->hash = hash;
    self->witnesses = witnesses;
    self->n_witnesses = w->n_mutables;
    return 0;
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
    {"jitted", T_OBJECT_EX, offsetof(Specialization, jitted), READONLY, NULL},
    {"flat", T_OBJECT_EX, offsetof(Specialization, flat), READONLY, NULL},
    {NULL}};

static PyType_Slot specialization_slots[] = {
    {Py_tp_doc, "What is compiled for one signature of one function."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, specialization_init},
    {Py_tp_dealloc, specialization_dealloc},
    {Py_tp_traverse, specialization_traverse},
    {Py_tp_clear, specialization_clear},
    {Py_tp_members, specialization_members},
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
    Py_VISIT(self->module);
    Py_VISIT(self->items);
    Py_VISIT(self->last);
    return 0;
}

static void table_dealloc(Table *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    table_clear(self);
    Py_XDECREF(self->items);
    Py_XDECREF(self->module);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int table_init(Table *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"capacity", NULL};
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &capacity)) return -1;
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &fastjit_module);
    if (module == NULL) return -1;
    PyObject *items = PyDict_New();
    if (items == NULL) return -1;
    Py_XSETREF(self->items, items);
    Py_XSETREF(self->module, Py_NewRef(module));
    self->capacity = capacity;
    self->state = PyModule_GetState(module);
    return 0;
}

/* --- for a walk that Python asks for ---------------------------------------------------- */

/* Reads a tuple of bound values. */
static Walk *walk_over(State *state, PyObject *values, int abstract) {
    Walk *w = walk_take(state);
    if (w == NULL) return NULL;
    w->abstract = abstract;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (read_value(w, PyTuple_GET_ITEM(values, i), 0) < 0) {
            walk_give_back(w);
            return NULL;
        }
    return w;
}

/* `find(values, abstract)`: the specialization, or `None`; the arrays; and whether any is
the user's own, of NumPy. */
static PyObject *table_find_method(Table *self, PyObject *args) {
    PyObject *values;
    int abstract;
    if (!PyArg_ParseTuple(args, "O!p", &PyTuple_Type, &values, &abstract)) return NULL;
    Walk *w = walk_over(self->state, values, abstract);
    if (w == NULL) return NULL;
    PyObject *found = (PyObject *)table_find(self, w), *out = NULL;
    if ((found != NULL || !PyErr_Occurred()) && copy_numpy(w) == 0)
        out = Py_BuildValue("(ONN)", found ? found : Py_None, tuple_of(w->arrays, w->n_arrays),
                            PyBool_FromLong(w->reads_numpy));
    Py_XDECREF(found);
    walk_give_back(w);
    return out;
}

/* `add(values, abstract, specialization)`. A table that is full is emptied. */
static PyObject *table_add_method(Table *self, PyObject *args) {
    PyObject *values, *added;
    int abstract;
    if (!PyArg_ParseTuple(args, "O!pO!", &PyTuple_Type, &values, &abstract,
                          self->state->specialization_type, &added))
        return NULL;
    Walk *w = walk_over(self->state, values, abstract);
    if (w == NULL) return NULL;
    uint64_t hash = trail_hash(w->trail, w->n_trail);
    int failed = specialization_set((Specialization *)added, w, hash);
    walk_give_back(w);
    if (failed) return NULL;
    if (self->n_items >= self->capacity) table_clear(self);
    self->n_items++;
    PyObject *key = PyLong_FromUnsignedLongLong(hash), *none = PyList_New(0), *bucket = NULL;
    if (key != NULL && none != NULL) bucket = PyDict_SetDefault(self->items, key, none);
    failed = bucket == NULL || PyList_Append(bucket, added) < 0;
    Py_XDECREF(key);
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
    {"add", (PyCFunction)table_add_method, METH_VARARGS,
     "Keep a specialization for such values."},
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
