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
    if (self->trail != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a specialization is for one signature");
        return -1;
    }
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

/* Whether a static that it was made with has been changed since: 1, 0 or -1. It is known
not to have been where the call has this very object: its state is on the call's trail.
(Of equal trails, the parts that can be changed are as many.) */
static int is_stale(Specialization *self, Walk *w) {
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
        if (same <= 0) return same < 0 ? -1 : 1;
    }
    return 0;
}

/* Whether the call has the very statics that it was made with, where they can change. */
static inline int has_witnesses(const Specialization *self, const Walk *w) {
    for (size_t i = 0; i < self->n_witnesses; i++)
        if (self->witnesses[i].object != w->mutables[i].object) return 0;
    return 1;
}

/* Whether it is for the call of a walk; -1 with an error. The caller holds it. */
typedef enum { FAILED = -1, OTHER, STALE, SAME_CALL } Match;

static Match match(Specialization *self, Walk *w) {
    int same = trail_same(w->trail, w->n_trail, self->trail, self->n_trail);
    if (same <= 0) return same < 0 ? FAILED : OTHER;
    if (has_witnesses(self, w)) return SAME_CALL;
    int stale = is_stale(self, w);
    return stale < 0 ? FAILED : stale ? STALE : SAME_CALL;
}

/* --- a walk that Python asks for -------------------------------------------------------- */

/* Reads a tuple of bound values. */
static Walk *walk_over(State *state, PyObject *values, int abstract) {
    if (!PyTuple_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of bound values");
        return NULL;
    }
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

static PyObject *arrays_of_walk(const Walk *w) {
    PyObject *list = PyList_New(w->n_arrays);
    for (size_t i = 0; list != NULL && i < w->n_arrays; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(w->arrays[i]));
    return list;
}

static PyObject *specialization_arrays_of(Specialization *self, PyTypeObject *cls,
                                          PyObject *const *args, Py_ssize_t n,
                                          PyObject *kwnames) {
    State *state = PyType_GetModuleState(cls);
    if (n != 1 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "expected bound values");
        return NULL;
    }
    Walk *w = walk_over(state, args[0], 0);
    if (w == NULL) return NULL;
    Match found = match(self, w);
    PyObject *arrays = NULL;
    if (found != FAILED)
        arrays = found == SAME_CALL ? arrays_of_walk(w) : Py_NewRef(Py_None);
    walk_give_back(w);
    return arrays;
}

static PyMemberDef specialization_members[] = {
    {"jitted", Py_T_OBJECT_EX, offsetof(Specialization, jitted), Py_READONLY, NULL},
    {"flat", Py_T_OBJECT_EX, offsetof(Specialization, flat), Py_READONLY, NULL},
    {NULL}};

static PyMethodDef specialization_methods[] = {
    {"arrays_of", (PyCFunction)(void (*)(void))specialization_arrays_of,
     METH_METHOD | METH_FASTCALL | METH_KEYWORDS,
     "The arrays of bound values, in JAX's order; `None` if it is not for them."},
    {NULL}};

static PyType_Slot specialization_slots[] = {
    {Py_tp_doc, "What is compiled for one signature of one function."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, specialization_init},
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

/* Writes the index anew, with room for twice as many. */
static int table_index(Table *self) {
    size_t size = 16;
    while (size < 2 * (self->count + 1)) size *= 2;
    size_t *index = PyMem_Calloc(size, sizeof(size_t));
    PyMem_Free(self->index);
    self->index = index;
    if (index == NULL) { /* nothing is found until it is written */
        self->mask = 0;
        PyErr_NoMemory();
        return -1;
    }
    self->mask = size - 1;
    for (size_t i = 0; i < self->count; i++) {
        size_t j = self->items[i]->hash & self->mask;
        while (index[j] != 0) j = (j + 1) & self->mask;
        index[j] = i + 1;
    }
    return 0;
}

/* Drops `n` from a place on. Finalizers run last. */
static int table_drop(Table *self, size_t first, size_t n) {
    Specialization **dropped = PyMem_Malloc((n + 1) * sizeof(*dropped));
    if (dropped == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(dropped, self->items + first, n * sizeof(*dropped));
    self->count -= n;
    memmove(self->items + first, self->items + first + n,
            (self->count - first) * sizeof(*dropped));
    self->last = NULL;
    self->version++;
    int failed = table_index(self);
    for (size_t i = 0; i < n; i++) Py_DECREF(dropped[i]);
    PyMem_Free(dropped);
    return failed;
}

/* Adds a specialization for the signature of a walk. Beyond the capacity, the oldest
quarter is dropped. */
int table_add(Table *self, Specialization *specialization, Walk *w) {
    if (specialization_set(specialization, w, trail_hash(w->trail, w->n_trail)) < 0) return -1;
    if (self->count == self->capacity && table_drop(self, 0, 1 + self->capacity / 4) < 0)
        return -1;
    if (self->count == self->room) {
        size_t room = self->room ? 2 * self->room : 8;
        Specialization **items = PyMem_Realloc(self->items, room * sizeof(*items));
        if (items == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->items = items;
        self->room = room;
    }
    self->items[self->count++] = (Specialization *)Py_NewRef((PyObject *)specialization);
    self->version++;
    if (2 * self->count > self->mask) return table_index(self);
    size_t i = specialization->hash & self->mask;
    while (self->index[i] != 0) i = (i + 1) & self->mask;
    self->index[i] = self->count;
    return 0;
}

void table_remove(Table *self, Specialization *specialization) {
    for (size_t i = 0; i < self->count; i++)
        if (self->items[i] == specialization) {
            if (table_drop(self, i, 1) < 0) PyErr_Clear();
            return;
        }
}

/* The specialization for a walk, a new reference; NULL if there is none, or an error. */
Specialization *table_find(Table *self, Walk *w) {
    Specialization *found = self->last;
    /* Most calls are like the one before, and need no hash. */
    if (found != NULL && found->n_trail == w->n_trail &&
        memcmp(found->trail, w->trail, w->n_trail * sizeof(Entry)) == 0 &&
        has_witnesses(found, w))
        return (Specialization *)Py_NewRef((PyObject *)found);
    if (self->index == NULL) return NULL;
    uint64_t hash = trail_hash(w->trail, w->n_trail), version = self->version;
    for (size_t i = hash & self->mask; self->index[i] != 0; i = (i + 1) & self->mask) {
        found = self->items[self->index[i] - 1];
        if (found->hash != hash) continue;
        Py_INCREF(found);
        Match matched = match(found, w);
        /* Somebody's `==` may have made a call. A cache miss is right in any case. */
        if (matched == SAME_CALL && self->version == version) return self->last = found;
        if (matched == STALE) table_remove(self, found);
        Py_DECREF(found);
        if (matched != OTHER || self->version != version) return NULL;
    }
    return NULL;
}

static int table_traverse(Table *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->module);
    for (size_t i = 0; i < self->count; i++) Py_VISIT(self->items[i]);
    return 0;
}

static int table_clear(Table *self) {
    return self->count == 0 ? 0 : table_drop(self, 0, self->count);
}

static void table_dealloc(Table *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (size_t i = self->count; i-- > 0;) {
        self->count = i;
        Py_DECREF(self->items[i]);
    }
    PyMem_Free(self->items);
    PyMem_Free(self->index);
    Py_XDECREF(self->module);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

static int table_init(Table *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"capacity", NULL};
    Py_ssize_t capacity;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n", names, &capacity)) return -1;
    if (capacity < 1) {
        PyErr_SetString(PyExc_ValueError, "a table has room for one at least");
        return -1;
    }
    PyObject *module = PyType_GetModuleByDef(Py_TYPE(self), &fastjit_module);
    if (module == NULL) return -1;
    self->capacity = capacity;
    self->state = PyModule_GetState(module);
    Py_XSETREF(self->module, Py_NewRef(module));
    return 0;
}

/* `find(values, abstract)`: the specialization, or `None`, and the arrays. */
static PyObject *table_find_method(Table *self, PyObject *args) {
    PyObject *values;
    int abstract;
    if (!PyArg_ParseTuple(args, "Op", &values, &abstract)) return NULL;
    Walk *w = walk_over(self->state, values, abstract);
    if (w == NULL) return NULL;
    PyObject *found = (PyObject *)table_find(self, w), *out = NULL;
    if (found != NULL || !PyErr_Occurred())
        out = Py_BuildValue("(ON)", found ? found : Py_None, arrays_of_walk(w));
    Py_XDECREF(found);
    walk_give_back(w);
    return out;
}

/* `add(values, abstract, specialization)` */
static PyObject *table_add_method(Table *self, PyObject *args) {
    PyObject *values, *specialization;
    int abstract;
    if (!PyArg_ParseTuple(args, "OpO!", &values, &abstract, self->state->specialization_type,
                          &specialization))
        return NULL;
    Walk *w = walk_over(self->state, values, abstract);
    if (w == NULL) return NULL;
    int failed = table_add(self, (Specialization *)specialization, w);
    walk_give_back(w);
    if (failed < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_clear_method(Table *self, PyObject *unused) {
    (void)unused;
    if (table_clear(self) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *table_remove_method(Table *self, PyObject *x) {
    table_remove(self, (Specialization *)x);
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(Table *self) { return self->count; }

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
    {Py_sq_length, table_length},
    {0, NULL}};

PyType_Spec table_spec = {
    "eqx_fastjit._native.Table", sizeof(Table), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, table_slots};
