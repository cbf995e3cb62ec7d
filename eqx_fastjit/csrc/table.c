/* Specializations of one function, by signature.

A table is a dict in which each specialization is its own key. Python puts them in and takes
them out (`_function.py`). */

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

    /* What is let go may run Python, which then finds nothing here. */
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
    PyTypeObject *type = shared.specialization_type;
    Specialization *self = (Specialization *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;

    self->trail = PyMem_Malloc((w->n_trail + 1) * sizeof(Entry));
    self->witnesses = PyMem_Malloc(w->n_mutables * sizeof(Mutable));
    if (self->trail == NULL || self->witnesses == NULL) {
        Py_DECREF(self);
        return (Specialization *)PyErr_NoMemory();
    }

    for (size_t i = 0; i < w->n_trail; i++) self->trail[i] = w->trail[i];
    self->trail[w->n_trail] = no_entry;
    for (size_t i = 0; i < w->n_mutables; i++) self->witnesses[i] = w->mutables[i];

    self->n_trail = w->n_trail;
    self->n_witnesses = w->n_mutables;
    self->static_numpy = w->static_numpy;
    self->hash = trail_hash(w->trail, w->n_trail);
    w->n_trail = w->n_mutables = 0;
    return self;
}

/* `read(values, abstract)`: a specialization with the signature of a call with these values, whose
`jitted` and `flat` are still to be set; and the arrays of the call. */
PyObject *read_signature(PyObject *self, PyObject *args) {
    (void)self;
    PyObject *values, *out = NULL;
    int abstract;
    if (!PyArg_ParseTuple(args, "O!p", &PyTuple_Type, &values, &abstract)) return NULL;

    Walk *w = walk_take();
    if (w == NULL) return NULL;
    w->abstract = abstract;
    PyObject *arrays = read_values(w, values) < 0 ? NULL : tuple_of(w->arrays, w->n_arrays);
    if (arrays != NULL) out = Py_BuildValue("(NN)", specialization_from(w), arrays);
    walk_give_back(w);
    return out;
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
    int same = trail_equal(self->trail, self->n_trail, other->trail, other->n_trail);
    return same < 0 ? NULL : PyBool_FromLong(same == (operator == Py_EQ));
}

/* Whether a static that it was made with has been changed since: 1, 0 or -1. */
static int has_changed(const Specialization *self, const Mutable *then) {
    Walk *now = walk_take();
    if (now == NULL) return -1;

    int same = -1;
    if (read_value(now, then->object, 1) == 0)
        same = trail_equal(now->trail, now->n_trail, self->trail + then->start,
                           then->stop - then->start);
    walk_give_back(now);

    if (same < 0 && !PyErr_ExceptionMatches(PyExc_Exception)) return -1;
    PyErr_Clear(); /* one that cannot be read any more has changed, too */
    return same != 1;
}

/* Whether any static that it was made with has been changed since: 1, 0 or -1. `mutables` are
those of a call with an equal trail; or NULL, where there is no call. Where the call has the same
object, that one's present state is in the call's trail, and so is equal: it is not read again.
(Equal trails with as many of these have them at the same places, as a trail tells what can be
changed.) */
static int is_stale(const Specialization *self, const Mutable *mutables, size_t n) {
    /* An object that was given another class may be one that cannot be changed any more. */
    if (mutables != NULL && n != self->n_witnesses) return 1;

    int stale = 0;
    for (size_t i = 0; i < self->n_witnesses && !stale; i++)
        if (mutables == NULL || mutables[i].object != self->witnesses[i].object)
            stale = has_changed(self, &self->witnesses[i]);
    return stale;
}

static PyObject *specialization_is_stale(Specialization *self, PyObject *unused) {
    (void)unused;
    int stale = is_stale(self, NULL, 0);
    return stale < 0 ? NULL : PyBool_FromLong(stale);
}

static PyMethodDef specialization_methods[] = {
    {"is_stale", (PyCFunction)specialization_is_stale, METH_NOARGS,
     "Whether a static that it was made with has been changed since."},
    {NULL}};

static PyMemberDef specialization_members[] = {
    {"jitted", T_OBJECT_EX, offsetof(Specialization, jitted), 0, NULL},
    {"flat", T_OBJECT_EX, offsetof(Specialization, flat), 0, NULL},
    {"static_numpy", T_INT, offsetof(Specialization, static_numpy), READONLY, NULL},
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
    {Py_tp_methods, specialization_methods},
    {0, NULL}};

PyType_Spec specialization_spec = {
    "eqx_fastjit._native.Specialization", sizeof(Specialization), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    specialization_slots};

/* --- a table ---------------------------------------------------------------------------- */

/* Has a walk expect what the last call had: most calls are like the one before. */
void table_expect(PyObject *last, Walk *w) {
    w->last = (Specialization *)PyCell_Get(last);
    if (w->last != NULL) w->next = w->last->trail;
}

/* The one for the same calls as a walk, a new reference; NULL if there is none, or an error. The
one of the last call needs no hash. One that is stale stays until another takes its place. */
Specialization *table_find(PyObject *table, PyObject *last, Walk *w) {
    Specialization *recent = w->last;

    /* The walk moved along its trail to the end, and met its very own mutable objects: at another
    one it would have got a trail of its own. So the state of each was just compared. */
    int is_at_end = w->next != &no_entry && w->next->kind == END;
    if (is_at_end && w->n_mutables == recent->n_witnesses)
        return (Specialization *)Py_NewRef((PyObject *)recent);

    /* The trail may be equal all the same, where the call has other mutable objects than the
    specialization. Then only the state of the call's was compared, so its own may be stale. */
    if (walk_own_trail(w) < 0) return NULL;
    int is_equal = recent != NULL && recent->n_trail == w->n_trail &&
                   trail_identical(recent->trail, w->trail, w->n_trail);
    if (is_equal && is_stale(recent, w->mutables, w->n_mutables) == 0)
        return (Specialization *)Py_NewRef((PyObject *)recent);
    if (PyErr_Occurred()) return NULL;

    /* The key of a dictionary, which takes what the walk has but for the arrays. */
    Specialization *wanted = specialization_from(w);
    if (wanted == NULL) return NULL;

    PyObject *value;
    get_item(table, (PyObject *)wanted, &value);
    Specialization *found = (Specialization *)value;
    if (found != NULL && is_stale(found, wanted->witnesses, wanted->n_witnesses) != 0)
        Py_CLEAR(found);
    Py_DECREF(wanted);
    if (found == NULL) return NULL;

    /* Python code may have dropped it meanwhile, which empties the table first, then the cell
    (`Function.forget`): so it is looked for again. */
    PyCell_Set(last, (PyObject *)found);
    int failed = get_item(table, (PyObject *)found, &value) < 0;
    if (value != (PyObject *)found) PyCell_Set(last, NULL);
    Py_XDECREF(value);
    if (failed) Py_CLEAR(found);
    return found;
}
