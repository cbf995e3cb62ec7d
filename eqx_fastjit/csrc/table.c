/* Specializations of one function, by signature. */

#include "fastjit.h"

/* Reads what Python passes: `(values, abstract)`, of which the first are bound values. */
static Walk *walk_over(PyObject *module, PyObject *args) {
    PyObject *values;
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

/* One with the signature of a walk, and what the walk owned: nothing is compiled for it yet. */
static Specialization *specialization_from(Walk *w) {
    PyTypeObject *type = w->state->specialization_type;
    Specialization *self = (Specialization *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->trail = PyMem_Malloc((w->n_trail + 1) * sizeof(Entry));
    self->witnesses = PyMem_Malloc((w->n_mutables + 1) * sizeof(Mutable));
    if (self->trail == NULL || self->witnesses == NULL) {
        Py_DECREF(self);
        return (Specialization *)PyErr_NoMemory();
    }
    for (size_t i = 0; i < w->n_trail; i++) self->trail[i] = w->trail[i];
    for (size_t i = 0; i < w->n_mutables; i++) self->witnesses[i] = w->mutables[i];
    self->n_trail = w->n_trail;
    self->n_witnesses = w->n_mutables;
    self->hash = trail_hash(w->trail, w->n_trail);
    w->n_trail = w->n_mutables = 0;
    return self;
}

/* `read(values, abstract)`: the signature of such a call, as a specialization for which Python
sets the rest; and its arrays. */
PyObject *read_signature(PyObject *module, PyObject *args) {
    Walk *w = walk_over(module, args);
    if (w == NULL) return NULL;
    PyObject *arrays = tuple_of(w->arrays, w->n_arrays), *out = NULL;
    if (arrays != NULL) out = Py_BuildValue("(NN)", specialization_from(w), arrays);
    walk_give_back(w);
    return out;
}

/* What is equal of two statics that are the same by the contract, with a hash. */
PyObject *static_key(PyObject *module, PyObject *x) {
    Walk *w = walk_take(PyModule_GetState(module));
    if (w == NULL) return NULL;
    PyObject *key = NULL;
    w->in_mutable = 1; /* nobody asks for its parts again */
    if (read_value(w, x, 1) == 0) key = (PyObject *)specialization_from(w);
    walk_give_back(w);
    return key;
}

static Py_hash_t specialization_hash(Specialization *self) {
    Py_hash_t hash = (Py_hash_t)self->hash;
    return hash == -1 ? -2 : hash;
}

/* They are equal if they are for the same calls. */
static PyObject *specialization_compare(Specialization *self, PyObject *x, int operator) {
    if (Py_TYPE(x) != Py_TYPE(self) || (operator != Py_EQ && operator != Py_NE))
        Py_RETURN_NOTIMPLEMENTED;
    const Specialization *other = (Specialization *)x;
    int same = trail_same(self->trail, self->n_trail, other->trail, other->n_trail);
    return same < 0 ? NULL : PyBool_FromLong(same == (operator == Py_EQ));
}

/* Whether a static that it was made with has been changed since: 1, 0 or -1. If the call has
the same object, its present state was just compared. (Equal trails have equally many parts
that can be changed, unless an object was given another class.) */
static int is_stale(const Specialization *self, State *state, const Mutable *mutables, size_t n) {
    if (n != self->n_witnesses) return 1;
    for (size_t i = 0; i < n; i++) {
        const Mutable *then = &self->witnesses[i];
        if (mutables[i].object == then->object) continue;
        Walk *now = walk_take(state);
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

static PyType_Slot specialization_slots[] = {
    {Py_tp_doc, "What is compiled for one signature of one function."},
    {Py_tp_dealloc, specialization_dealloc},
    {Py_tp_traverse, specialization_traverse},
    {Py_tp_clear, specialization_clear},
    {Py_tp_hash, specialization_hash},
    {Py_tp_richcompare, specialization_compare},
    {Py_tp_members, specialization_members},
    {0, NULL}};

PyType_Spec specialization_spec = {
    "eqx_fastjit._native.Specialization", sizeof(Specialization), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    specialization_slots};

/* --- a table ---------------------------------------------------------------------------- */

static int table_clear(Table *self) {
    Py_CLEAR(self->last);
    if (self->items != NULL) PyDict_Clear(self->items);
    return 0;
}

/* Drops a specialization, if it is in the table. */
static int table_remove(Table *self, Specialization *specialization) {
    if (self->last == specialization) Py_CLEAR(self->last);
    PyObject *found = PyDict_GetItemWithError(self->items, (PyObject *)specialization);
    if (found != (PyObject *)specialization) return found == NULL && PyErr_Occurred() ? -1 : 0;
    return PyDict_DelItem(self->items, found);
}

/* The specialization for a walk, a new reference; NULL if there is none, or an error. */
Specialization *table_find(Table *self, Walk *w) {
    Specialization *found = (Specialization *)Py_XNewRef((PyObject *)self->last);
    /* Most calls are like the one before, and need no hash. */
    if (found != NULL && found->n_trail == w->n_trail &&
        trail_identical(found->trail, w->trail, w->n_trail) &&
        is_stale(found, w->state, w->mutables, w->n_mutables) == 0)
        return found;
    Py_CLEAR(found);
    if (PyErr_Occurred()) return NULL;
    Specialization *wanted = specialization_from(w);
    if (wanted == NULL) return NULL;
    found = (Specialization *)Py_XNewRef(
        PyDict_GetItemWithError(self->items, (PyObject *)wanted));
    int stale = found == NULL ? 0 : is_stale(found, w->state, wanted->witnesses, wanted->n_witnesses);
    if (stale == 1) stale = table_remove(self, found) < 0 ? -1 : 1;
    Py_DECREF(wanted);
    if (stale != 0)
        Py_CLEAR(found);
    else if (found != NULL)
        Py_XSETREF(self->last, (Specialization *)Py_NewRef((PyObject *)found));
    return found;
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
    Walk *w = walk_over(PyType_GetModuleByDef(Py_TYPE(self), &fastjit_module), args);
    if (w == NULL) return NULL;
    PyObject *found = (PyObject *)table_find(self, w), *out = NULL;
    if ((found != NULL || !PyErr_Occurred()) && copy_numpy(w) == 0)
        out = Py_BuildValue("(ONN)", found ? found : Py_None, tuple_of(w->arrays, w->n_arrays),
                            PyBool_FromLong(w->reads_numpy));
    Py_XDECREF(found);
    walk_give_back(w);
    return out;
}

/* A table that is full is emptied. Of equal ones, the first stays. */
static PyObject *table_add_method(Table *self, PyObject *added) {
    if (PyDict_GET_SIZE(self->items) >= self->capacity) table_clear(self);
    if (PyDict_SetDefault(self->items, added, added) == NULL) return NULL;
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
