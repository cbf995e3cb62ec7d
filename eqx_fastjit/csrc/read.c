/* The walk: reads the arguments of a call, as JAX flattens them.

Arrays go into a list, in JAX's order. All else goes onto the trail, which is the call's
signature: two calls with the same trail share a specialization (`signature.c`).
`_statics.py` says which reader a type has, by the contract (`docs/contract.md`).

A reader may run Python: a `__hash__`, a flatten function. So each container is held
while its parts are read, each part while it is read, and sizes are asked for again. */

#include "fastjit.h"

/* --- what a walk has -------------------------------------------------------------------- */

/* Has a buffer, a pointer to items of this size, have room for `n` of them. */
static int make_room(void *buffer, size_t *room, size_t n, size_t size) {
    if (n <= *room) return 0;
    size_t more = *room < 32 ? 64 : 2 * *room;
    while (more < n) more *= 2;

    void *items;
    memcpy(&items, buffer, sizeof(items)); /* whatever the pointer's type is */
    items = PyMem_Realloc(items, more * size);
    if (items == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(buffer, &items, sizeof(items));
    *room = more;
    return 0;
}

static int room_in_trail(Walk *w, size_t n) {
    return make_room(&w->trail, &w->room_trail, n, sizeof(Entry));
}

static int room_in_mutables(Walk *w, size_t n) {
    return make_room(&w->mutables, &w->room_mutables, n, sizeof(Mutable));
}

const Entry no_entry = {END, {NULL}};

static int owns_trail(const Walk *w) { return w->next == &no_entry; }

/* Has the walk own what it has passed of the last specialization's trail, from where it is. */
int walk_own_trail(Walk *w) {
    if (owns_trail(w)) return 0;
    const Specialization *last = w->last;
    size_t n_trail = w->next - last->trail, n_mutables = w->n_mutables;
    if (room_in_trail(w, n_trail) < 0 || room_in_mutables(w, n_mutables) < 0) return -1;

    for (size_t i = 0; i < n_trail; i++) {
        w->trail[i] = last->trail[i];
        Py_XINCREF(entry_object(&w->trail[i]));
    }
    for (size_t i = 0; i < n_mutables; i++) {
        w->mutables[i] = last->witnesses[i];
        Py_INCREF(w->mutables[i].object);
    }

    w->n_trail = n_trail;
    w->next = &no_entry;
    return 0;
}

/* Pushes an entry that is not the expected one. */
static int push_own(Walk *w, EntryKind kind, uint64_t bits) {
    if (walk_own_trail(w) < 0 || room_in_trail(w, w->n_trail + 1) < 0) return -1;
    w->trail[w->n_trail++] = (Entry){kind, {.bits = bits}};
    return 0;
}

static inline int is_expected(const Walk *w, EntryKind kind, uint64_t bits) {
    return w->next->as.bits == bits && w->next->kind == kind;
}

static inline int push(Walk *w, EntryKind kind, uint64_t bits) {
    if (!is_expected(w, kind, bits)) return push_own(w, kind, bits);
    w->next++;
    return 0;
}

static inline int push_object(Walk *w, EntryKind kind, PyObject *x) {
    uint64_t bits = (uint64_t)(uintptr_t)x;
    if (!is_expected(w, kind, bits)) {
        if (push_own(w, kind, bits) < 0) return -1;
        Py_INCREF(x);
        return 0;
    }
    w->next++;
    return 0;
}

/* Pushes the type of a value, and how many parts follow. */
static int push_node(Walk *w, const Type *type, Py_ssize_t n) {
    return push_object(w, TYPE, (PyObject *)type->type) < 0 ? -1 : push(w, BITS, n);
}

static int push_array(Walk *w, PyObject *x) {
    if (make_room(&w->arrays, &w->room_arrays, w->n_arrays + 1, sizeof(x)) < 0) return -1;
    if (push(w, ARRAY, 0) < 0) return -1;
    w->arrays[w->n_arrays++] = Py_NewRef(x);
    return 0;
}

/* One that is free, or a new one. */
Walk *walk_take(void) {
    LOCK();
    Walk *w = shared.free_walks;
    if (w != NULL)
        shared.free_walks = w->next_free;
    else
        w = PyMem_Calloc(1, sizeof(Walk));
    shared.n_walks += w != NULL;
    UNLOCK();

    if (w == NULL) return (Walk *)PyErr_NoMemory();
    w->next = &no_entry;
    return w;
}

/* Lets go of all that was read. Finalizers may make calls, with other walks. */
void walk_forget(Walk *w) {
    if (owns_trail(w)) {
        for (size_t i = 0; i < w->n_trail; i++) Py_XDECREF(entry_object(&w->trail[i]));
        for (size_t i = 0; i < w->n_mutables; i++) Py_DECREF(w->mutables[i].object);
    }
    for (size_t i = 0; i < w->n_arrays; i++) Py_DECREF(w->arrays[i]);
    Py_CLEAR(w->last);
    w->next = &no_entry;
    w->n_trail = w->n_arrays = w->n_mutables = 0;
    w->numpy_bytes = 0;
    w->asked = NULL;
    w->below_mutable = w->has_tracers = w->reads_numpy = w->static_numpy = 0;
}

/* Frees the buffers of a walk, if they are larger than most calls need. */
static void walk_shrink(Walk *w) {
    if (w->room_trail + w->room_arrays + w->room_mutables <= MOST_KEPT) return;
    PyMem_Free(w->trail);
    PyMem_Free(w->arrays);
    PyMem_Free(w->mutables);
    w->trail = NULL;
    w->arrays = NULL;
    w->mutables = NULL;
    w->room_trail = w->room_arrays = w->room_mutables = 0;
}

void walk_give_back(Walk *w) {
    PyObject *error = PyErr_Occurred() ? take_error() : NULL;
    walk_forget(w);
    Py_CLEAR(w->values);
    Py_CLEAR(w->observer);
    Py_CLEAR(w->began);
    w->abstract = 0;
    walk_shrink(w);

    LOCK();
    w->next_free = shared.free_walks;
    shared.free_walks = w;
    shared.n_walks -= 1;
    UNLOCK();
    if (error != NULL) put_error(error);
}

/* --- reading ---------------------------------------------------------------------------- */

/* Reads a static that can be changed in place. Of one that is in itself: how far around. */
static int read_once(Walk *w, const Type *type, PyObject *x, Reader read) {
    uint64_t distance = 1;
    for (const BeingRead *y = w->being_read; y != NULL; y = y->around, distance++)
        if (y->object == x) return push(w, BITS, distance);

    BeingRead here = {x, w->being_read};
    w->being_read = &here;
    int failed = read(w, type, x, 1);
    w->being_read = here.around;
    return failed;
}

/* Notes a static, which is read next. */
static int push_mutable(Walk *w, PyObject *x) {
    const Specialization *last = w->last;
    size_t number = w->n_mutables;
    int is_expected = !owns_trail(w) && number < last->n_witnesses &&
                      last->witnesses[number].object == x;

    if (!is_expected) {
        if (walk_own_trail(w) < 0 || room_in_mutables(w, number + 1) < 0) return -1;
        w->mutables[number] = (Mutable){Py_NewRef(x), w->n_trail, w->n_trail};
    }
    w->n_mutables++;
    return 0;
}

/* The same of one that no other is around, and notes which part of the trail it is. */
static int read_mutable(Walk *w, const Type *type, PyObject *x, Reader read) {
    if (w->below_mutable) return read_once(w, type, x, read);

    size_t number = w->n_mutables;
    if (push_mutable(w, x) < 0) return -1;
    w->below_mutable++; /* what is below it is a part of its state */
    int failed = read_once(w, type, x, read);
    w->below_mutable--;
    if (owns_trail(w)) w->mutables[number].stop = w->n_trail;
    return failed;
}

static int read_node(Walk *w, const Type *type, PyObject *x, int as_static);

/* Whether JAX flattens a value (`_statics.is_flattened`). -1 with an error. */
static int is_flattened(PyObject *x) {
    PyObject *answer = PyObject_CallOneArg(shared.given[IS_FLATTENED], x);
    int found = answer == NULL ? -1 : answer == Py_True;
    Py_XDECREF(answer);
    return found;
}

/* Reads a value that the caller holds. */
static inline int read_held(Walk *w, PyObject *x, int as_static) {
    if (w->next->as.object == x && is_constant(w->next)) { /* as last time */
        w->next++;
        return 0;
    }

    const Type *type = type_of(x);
    if (type == NULL) return -1;

    if (!as_static && !type->is_node) {
        /* Unless its class was registered since it was first read: of other objects a miss
        would tell, but equal ones are never missed. Asked once for several in a row. */
        if (type->may_be_equal && w->asked != type) {
            int is_late = is_flattened(x);
            if (is_late) return is_late < 0 ? -1 : read_node(w, type, x, 0);
            w->asked = type;
        }
        as_static = 1;
    }

    if (as_static && type->is_mutable) return read_mutable(w, type, x, type->read);
    return type->read(w, type, x, as_static);
}

int read_value(Walk *w, PyObject *x, int as_static) { return read_held(w, x, as_static); }

/* Reads one value for each parameter: a tuple. */
int read_values(Walk *w, PyObject *values) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (read_held(w, PyTuple_GET_ITEM(values, i), 0) < 0) return -1;
    return 0;
}

/* Into a container, whose parts are read next. As deep as C code may go: on Python 3.11, as deep as
Python's own calls, from 3.12 on by the stack. */
static int enter(void) { return Py_EnterRecursiveCall(" while a call is read") ? -1 : 0; }
static int leave(int failed) {
    Py_LeaveRecursiveCall();
    return failed;
}

static int changed_size(PyObject *x) {
    PyErr_Format(PyExc_RuntimeError, "a %s changed its size while a call was read",
                 Py_TYPE(x)->tp_name);
    return -1;
}

/* --- statics ---------------------------------------------------------------------------- */

static int read_same(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)as_static;
    int is_heap = PyType_HasFeature(type->type, Py_TPFLAGS_HEAPTYPE);
    return push_object(w, is_heap ? SAME : FIXED, x);
}

/* By hash and `==`: strings, and all that has a hash (rule 5). */
static int push_equal(Walk *w, const Type *type, PyObject *x, Py_hash_t hash) {
    if (push_object(w, TYPE, (PyObject *)type->type) < 0 || push(w, BITS, hash) < 0) return -1;
    return push_object(w, EQUAL, x);
}

static int read_text(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)as_static;
    if (PyUnicode_CheckExact(x)) return push_object(w, TEXT, x);
    Py_hash_t hash = PyObject_Hash(x);
    return hash == -1 && PyErr_Occurred() ? -1 : push_equal(w, type, x, hash);
}

/* By its state, which Python computes: dtype, shape and bytes of a NumPy array; rule 6. */
static int read_state(Walk *w, const Type *type, PyObject *x, int as_static) {
    PyObject *state = PyObject_CallOneArg(shared.given[STATE_OF], x);
    if (state == NULL) return -1;

    int failed;
    if (state == x) {
        failed = push_object(w, SAME, x);
    } else if ((failed = push_object(w, TYPE, (PyObject *)type->type)) == 0 &&
               (failed = enter()) == 0) {
        /* The state is new each time: nobody can change it. */
        w->below_mutable++;
        failed = leave(read_held(w, state, as_static));
        w->below_mutable--;
    }

    Py_DECREF(state);
    return failed;
}

static int read_hashed(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)as_static;
    Py_hash_t hash = PyObject_Hash(x);
    if (hash == -1 && PyErr_Occurred()) {
        /* It has no hash after all: rule 6. */
        if (!PyErr_ExceptionMatches(PyExc_Exception) ||
            PyErr_ExceptionMatches(PyExc_RecursionError))
            return -1;
        PyErr_Clear();
        return read_mutable(w, type, x, read_state);
    }
    return push_equal(w, type, x, hash);
}

/* Another object than last time may be the same number. */
static int push_number(Walk *w, EntryKind kind, PyObject *x) {
    const Entry *next = w->next;
    if (next->kind != kind || number_bits(kind, next->as.object) != number_bits(kind, x))
        return push_object(w, kind, x);
    w->next++;
    return 0;
}

static int read_int(Walk *w, const Type *type, PyObject *x, int as_static) {
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (value == -1 && PyErr_Occurred()) return -1;
    if (overflow) return read_text(w, type, x, as_static);
    return PyLong_CheckExact(x) ? push_number(w, INT, x) : push_node(w, type, value);
}

static int push_double(Walk *w, double value) { return push(w, BITS, double_bits(value)); }

static int read_float(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)as_static;
    if (PyFloat_CheckExact(x)) return push_number(w, FLOAT, x);
    if (push_object(w, TYPE, (PyObject *)type->type) < 0) return -1;
    return push_double(w, PyFloat_AS_DOUBLE(x));
}

static int read_complex(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)as_static;
    if (push_object(w, TYPE, (PyObject *)type->type) < 0) return -1;
    if (push_double(w, PyComplex_RealAsDouble(x)) < 0) return -1;
    return push_double(w, PyComplex_ImagAsDouble(x));
}

/* A set of any kind, by `==`: of a copy, if it can be changed. */
static int read_set(Walk *w, const Type *type, PyObject *x, int as_static) {
    if (!type->is_mutable) return read_text(w, type, x, as_static);

    PyObject *copy = PyFrozenSet_New(x);
    if (copy == NULL) return -1;
    int failed = read_text(w, type, copy, as_static);
    Py_DECREF(copy);
    return failed;
}

/* The value of a field, a new reference; NULL if it is missing, or with an error. Most
dictionaries have the order of the names, so no search is needed. */
static inline PyObject *next_field(PyObject *fields, Py_ssize_t *position, PyObject *name) {
    PyObject *key, *value = NULL;
    Py_ssize_t before = *position;

    Py_BEGIN_CRITICAL_SECTION(fields);
    int is_next = PyDict_Next(fields, position, &key, &value) && key == name;
    value = is_next ? Py_NewRef(value) : NULL;
    Py_END_CRITICAL_SECTION();
    if (value != NULL) return value;

    *position = before;
    get_item(fields, name, &value);
    return value;
}

/* The fields of a value, from its dictionary, if it has one; any of them may be missing. */
static int read_names(Walk *w, const Type *type, PyObject *x, PyObject *fields, int as_static) {
    Py_ssize_t n = PyTuple_GET_SIZE(type->names), position = 0;
    if (push_node(w, type, n) < 0 || enter() < 0) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(type->names, i), *value = NULL;

        if (fields != NULL) value = next_field(fields, &position, name);
        /* A Module's may be missing and another attribute there: Equinox ignores both. */
        if (value == NULL && !type->is_node && !PyErr_Occurred()) {
            value = PyObject_GetAttr(x, name);
            if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
        }

        int failed = value != NULL ? read_held(w, value, as_static || i >= type->n_dynamic)
                     : PyErr_Occurred() ? -1
                                        : push(w, BITS, 0);
        Py_XDECREF(value);
        if (failed) return leave(-1);
    }
    return leave(0);
}

/* The fields that a generated `__eq__` compares: from the dictionary, which takes half the
time of asking for attributes, unless their class does something else. */
static int read_fields(Walk *w, const Type *type, PyObject *x, int as_static) {
    PyObject *fields = NULL;
    if (Py_TYPE(x)->tp_dictoffset != 0 && Py_TYPE(x)->tp_getattro == PyObject_GenericGetAttr &&
        (fields = PyObject_GenericGetDict(x, NULL)) == NULL)
        return -1;
    int failed = read_names(w, type, x, fields, as_static);
    Py_XDECREF(fields);
    return failed;
}

/* --- arrays ----------------------------------------------------------------------------- */

static int read_array(Walk *w, const Type *type, PyObject *x, int as_static) {
    (void)type;
    return as_static ? push_object(w, SAME, x) : push_array(w, x);
}

static int read_tracer(Walk *w, const Type *type, PyObject *x, int as_static) {
    w->has_tracers |= !as_static;
    return read_array(w, type, x, as_static);
}

static int read_scalar(Walk *w, const Type *type, PyObject *x, int as_static) {
    return as_static ? read_state(w, type, x, 1) : push_array(w, x);
}

/* Counts their bytes. (A broadcast array may seem huge.) */
static int read_numpy(Walk *w, const Type *type, PyObject *x, int as_static) {
    w->static_numpy |= as_static;
    if (as_static) return read_state(w, type, x, 1);

    PyObject *size = PyObject_GetAttr(x, shared.names[NBYTES]);
    Py_ssize_t n_bytes = size == NULL ? -1 : PyLong_AsSsize_t(size);
    Py_XDECREF(size);
    if (n_bytes < 0 && PyErr_Occurred()) return -1;

    Py_ssize_t room = PY_SSIZE_T_MAX - w->numpy_bytes;
    w->numpy_bytes += n_bytes < room ? n_bytes : room;
    return push_array(w, x);
}

/* Has Python transfer arrays of NumPy; if it does, the walk has those of JAX instead. */
static int transfer_numpy(Walk *w) {
    PyObject *arrays = tuple_of(w->arrays, w->n_arrays), *put = NULL;
    if (arrays != NULL) put = PyObject_CallOneArg(shared.given[TRANSFERRED], arrays);
    Py_XDECREF(arrays);
    if (put == NULL) return -1;

    w->reads_numpy = put == Py_None;
    for (size_t i = 0; i < w->n_arrays && !w->reads_numpy; i++)
        Py_SETREF(w->arrays[i], Py_NewRef(PyTuple_GET_ITEM(put, i)));
    Py_DECREF(put);
    return 0;
}

/* JAX does not always copy an array of NumPy, and the caller may write to it before the
device is done. So it is copied, if all of them are small; else it is transferred, or the
call blocks. Not during the walk, because NumPy releases the GIL: others may then change
what is read. */
int copy_numpy(Walk *w) {
    if (w->numpy_bytes == 0) return 0;
    if (w->numpy_bytes > PyLong_AsSsize_t(shared.given[COPIED_BYTES])) return transfer_numpy(w);

    for (size_t i = 0; i < w->n_arrays; i++) {
        const Type *type = type_of(w->arrays[i]);
        if (type == NULL) return -1;
        if (type->read != read_numpy) continue;

        PyObject *copy = PyObject_CallMethodNoArgs(w->arrays[i], shared.names[COPY]);
        if (copy == NULL) return -1;
        Py_SETREF(w->arrays[i], copy);
    }
    return 0;
}

static int read_struct(Walk *w, const Type *type, PyObject *x, int as_static) {
    return as_static || !w->abstract ? read_hashed(w, type, x, 1) : push_array(w, x);
}

/* --- containers ------------------------------------------------------------------------- */

static int read_tuple(Walk *w, const Type *type, PyObject *x, int as_static) {
    Py_ssize_t n = PyTuple_GET_SIZE(x);
    if (push_node(w, type, n) < 0 || enter() < 0) return -1;
    for (Py_ssize_t i = 0; i < n; i++)
        if (read_held(w, PyTuple_GET_ITEM(x, i), as_static) < 0) return leave(-1);
    return leave(0);
}

static int read_list(Walk *w, const Type *type, PyObject *x, int as_static) {
    Py_ssize_t n = PyList_GET_SIZE(x), i;
    if (push_node(w, type, n) < 0 || enter() < 0) return -1;
    for (i = 0; i < n; i++) {
        PyObject *item = list_item(x, i);
        if (item == NULL) break;
        int failed = read_held(w, item, as_static);
        Py_DECREF(item);
        if (failed) return leave(-1);
    }
    return leave(i == n && PyList_GET_SIZE(x) == n ? 0 : changed_size(x));
}

/* The next item of a dictionary, as new references, if there is one. */
static inline int next_item(PyObject *dict, Py_ssize_t *position, PyObject **key,
                            PyObject **value) {
    Py_BEGIN_CRITICAL_SECTION(dict);
    if (PyDict_Next(dict, position, key, value)) {
        Py_INCREF(*key);
        Py_INCREF(*value);
    } else {
        *key = NULL;
    }
    Py_END_CRITICAL_SECTION();
    return *key != NULL;
}

/* The items, in the order that the dictionary has: each key as a static. */
static int read_items(Walk *w, PyObject *x) {
    Py_ssize_t n = PyDict_GET_SIZE(x), position = 0, n_read = 0;
    PyObject *key, *value;
    for (; n_read < n && next_item(x, &position, &key, &value); n_read++) {
        int failed = read_held(w, key, 1) < 0 || read_held(w, value, 1) < 0;
        Py_DECREF(key);
        Py_DECREF(value);
        if (failed) return -1;
    }
    return n_read == n && PyDict_GET_SIZE(x) == n ? 0 : changed_size(x);
}

/* A node of any class: by its flatten function, or by JAX's own for some. */
static int read_node(Walk *w, const Type *type, PyObject *x, int as_static) {
    PyObject *flat = PyObject_CallOneArg(shared.given[FLATTEN_ONE_LEVEL], x);
    PyObject *children, *aux, *parts = NULL;
    int failed = -1;
    if (flat == NULL) return -1;
    if (!PyArg_ParseTuple(flat, "OO", &children, &aux)) goto done;
    if ((parts = PySequence_Tuple(children)) == NULL || enter() < 0) goto done;

    Py_ssize_t n = PyTuple_GET_SIZE(parts), i;
    failed = push_node(w, type, n);
    for (i = 0; i < n && !failed; i++)
        failed = read_held(w, PyTuple_GET_ITEM(parts, i), as_static);
    if (!failed) failed = read_held(w, aux, 1);
    /* JAX sorts a `defaultdict`; as a static, the function sees it as it is. */
    if (!failed && as_static && PyDict_Check(x)) failed = read_items(w, x);
    leave(0);

done:
    Py_XDECREF(parts);
    Py_DECREF(flat);
    return failed;
}

/* The values of a dictionary, in the order of its sorted keys: a tuple. NULL with an error, or if
it has not these very keys, in this order. */
static PyObject *sorted_values(PyObject *dict, const KeyOrder *order) {
    Py_ssize_t n = order->keys == NULL ? -1 : PyList_GET_SIZE(order->keys);
    if (n != PyDict_GET_SIZE(dict)) return NULL;
    PyObject *values = PyTuple_New(n), *key, *value;
    if (values == NULL) return NULL;
    const Py_ssize_t *places = (const Py_ssize_t *)PyBytes_AS_STRING(order->places);
    Py_ssize_t position = 0, n_same = 0;

    Py_BEGIN_CRITICAL_SECTION(dict); /* no Python runs in it */
    while (n_same < n && PyDict_Next(dict, &position, &key, &value) &&
           key == PyList_GET_ITEM(order->keys, n_same))
        PyTuple_SET_ITEM(values, places[n_same++], Py_NewRef(value));
    Py_END_CRITICAL_SECTION();
    if (n_same != n) Py_CLEAR(values);
    return values;
}

/* Remembers the order of a dictionary's keys: 1. 0 if only JAX knows it, -1 with an error. */
static int sort_keys(PyObject *dict, KeyOrder *order) {
    PyObject *keys = PyDict_Keys(dict), *found = NULL, *sorted, *places;
    if (keys != NULL) found = PyObject_CallOneArg(shared.given[SORTED_KEYS], keys);

    int is_known = found == NULL ? -1 : found != Py_None;
    if (is_known == 1 && !PyArg_ParseTuple(found, "O!S", &PyList_Type, &sorted, &places))
        is_known = -1;
    if (is_known == 1) {
        Py_XSETREF(order->keys, Py_NewRef(keys));
        Py_XSETREF(order->sorted, Py_NewRef(sorted));
        Py_XSETREF(order->places, Py_NewRef(places));
    }
    Py_XDECREF(found);
    Py_XDECREF(keys);
    return is_known;
}

/* The values of a dictionary in the order of its sorted keys, each after its key. */
static int read_sorted(Walk *w, const Type *type, PyObject *sorted, PyObject *values) {
    Py_ssize_t n = PyTuple_GET_SIZE(values);
    if (push_node(w, type, n) < 0 || enter() < 0) return -1;
    for (Py_ssize_t i = 0; i < n; i++) {
        if (read_held(w, PyList_GET_ITEM(sorted, i), 1) < 0) return leave(-1);
        if (read_held(w, PyTuple_GET_ITEM(values, i), 0) < 0) return leave(-1);
    }
    return leave(0);
}

/* As a node, sorted like JAX does; as a static, in the order that the function sees. */
static int read_dict(Walk *w, const Type *type, PyObject *x, int as_static) {
    Py_ssize_t n = PyDict_GET_SIZE(x), position = 0;
    PyObject *first, *value;
    if (as_static || !next_item(x, &position, &first, &value))
        return push_node(w, type, n) < 0 || enter() < 0 ? -1 : leave(read_items(w, x));
    Py_DECREF(value);
    Py_DECREF(first);

    /* Others with that first key, or that address, have the places after it. */
    size_t place = (size_t)(uintptr_t)first / 16 + n;
    KeyOrder *order = NULL;
    PyObject *values = NULL;
    for (size_t i = place; i < place + N_TRIED; i++) {
        order = &w->orders[i % N_ORDERS];
        if (order->keys == NULL) break;
        values = sorted_values(x, order);
        if (values != NULL || PyErr_Occurred()) break;
    }

    if (values == NULL && !PyErr_Occurred()) {
        int is_known = sort_keys(x, order); /* which runs Python, that may change `x` */
        if (is_known == 0) return push_node(w, type, -1) < 0 ? -1 : read_node(w, type, x, 0);
        values = is_known == 1 ? sorted_values(x, order) : NULL;
        if (values == NULL && !PyErr_Occurred()) changed_size(x);
    }
    if (values == NULL) return -1;

    PyObject *sorted = Py_NewRef(order->sorted); /* one below may take its place */
    int failed = read_sorted(w, type, sorted, values);
    Py_DECREF(sorted);
    Py_DECREF(values);
    return failed;
}

/* A Module: its fields, as Equinox flattens it, from its dictionary. Not by attributes:
`Module.__getattribute__` is Python. One that has more or less than its fields, such as a wrapper
with a docstring of its own, is read as any node. */
static int read_module(Walk *w, const Type *type, PyObject *x, int as_static) {
    PyObject *fields = PyObject_GenericGetDict(x, NULL);
    if (fields == NULL) return -1;
    int failed;
    if (PyDict_GET_SIZE(fields) == PyTuple_GET_SIZE(type->names))
        failed = read_names(w, type, x, fields, as_static);
    else
        failed = push_node(w, type, -1) < 0 ? -1 : read_node(w, type, x, as_static);
    Py_DECREF(fields);
    return failed;
}

/* --- by name ---------------------------------------------------------------------------- */

Reader reader_called(const char *name) {
    static const struct {
        const char *name;
        Reader reader;
    } readers[] = {
        {"array", read_array},   {"tracer", read_tracer}, {"scalar", read_scalar},
        {"numpy", read_numpy},   {"struct", read_struct}, {"tuple", read_tuple},
        {"list", read_list},     {"dict", read_dict},     {"node", read_node},
        {"module", read_module}, {"same", read_same},     {"text", read_text},
        {"hashed", read_hashed}, {"int", read_int},       {"float", read_float},
        {"complex", read_complex}, {"set", read_set},     {"fields", read_fields},
        {"state", read_state},
    };
    for (size_t i = 0; i < sizeof(readers) / sizeof(*readers); i++)
        if (strcmp(readers[i].name, name) == 0) return readers[i].reader;
    return NULL;
}
