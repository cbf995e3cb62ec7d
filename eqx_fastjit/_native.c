/* One native pass over a call: bind, partition, look up, call `jax.jit`, combine.

`_partition.py` and `_static_keys.py` are the reference and say what it all means; this
file does the same without running Python for what it knows, and asks Python, for that
value alone, about what it does not. `_function.py` is what it calls when a call has not
been met. docs/how-it-works.md has the picture.

Two rules keep it right while user code runs in the middle (`flatten` functions,
`__hash__`, `__eq__`, finalizers), which may drop what is being walked:

- As long as no Python has run in a walk, references are borrowed from the arguments.
  `own_everything` comes before any Python, and the walk owns what it holds from then on.
- A `Record` of a type is not touched after Python has run: it may be gone.

Why C: the same walk in Cython was as quick, but a small call took 0.4 us more, since
`__call__(*args)` makes a tuple, of the 0.4 us that identity may cost over `jax.jit`. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* --- what Python gives (`setup`) ---------------------------------------------------- */

static PyObject *registry;       /* JAX's dict of registered node types */
static Py_ssize_t n_registered;  /* its size when the type records were made */
static PyObject *py_classify, *py_policy_of, *py_opaque_key, *py_array_key, *py_sort_keys;
static PyObject *py_check_ends, *py_call_class, *py_block, *py_reads_numpy, *eager_handle;
static PyObject *module_dict; /* the descriptor of `__dict__` of all Modules */
static PyTypeObject *array_type; /* jaxlib's array, once one was met */
static PyObject *function_types; /* a tuple: JAX's types of functions, and `type` */
static PyTypeObject *numpy_type; /* `numpy.ndarray` */
static Py_ssize_t copied_bytes; /* the most of NumPy arrays that a call copies */

static PyObject *s_block_until_ready, *s_miss, *s_call, *s_finished, *s_failed;
static PyObject *s_translate, *s_result, *s_decide_blocks, *s_renew_binding, *s_flat;
static PyObject *s_specialization, *s_eager_result, *s_build, *s_steps, *s_native;
static PyObject *s_nbytes, *s_copy, *s_default_factory;

/* --- trails --------------------------------------------------------------------------

The numbers of `NodeKind` and `Kind` are those of the Python files. */

enum { NODE_STATIC, NODE_ARRAY, NODE_NUMPY, NODE_NONE, NODE_TUPLE, NODE_LIST, NODE_DICT,
       NODE_NAMEDTUPLE, NODE_MODULE, NODE_CUSTOM, NODE_STRUCT, NODE_OTHER_ARRAY,
       NODE_TRACER, NODE_DATACLASS, NODE_DEFAULTDICT, NODE_ORDERED_DICT };
enum { KIND_IDENTITY, KIND_INT, KIND_FLOAT, KIND_COMPLEX, KIND_STR, KIND_BYTES, KIND_PURE,
       KIND_OPAQUE, KIND_TUPLE, KIND_LIST, KIND_DICT, KIND_FIELDS, KIND_PARTS, KIND_KEY,
       KIND_NODE, KIND_METHOD };
enum { HASHABLE_YES, HASHABLE_NO, HASHABLE_AS_PARTS, HASHABLE_ASK };

/* What an entry of a trail is. Those from `T_NODE` on hold an object. */
enum { T_ARRAYS, T_INT, T_FLOAT, T_AGAIN, T_FLATTENED,
       T_NODE, T_STATIC, T_IDENTITY, T_STR, T_BYTES, T_BIGINT, T_PURE, T_OPAQUE, T_KEY };

typedef struct {
    uint64_t tag; /* one of the above; from bit 8 on a count or the bits of a hash */
    union { PyObject *object; int64_t integer; double real; uint64_t bits; } as;
} Entry;

#define KIND_OF(tag) ((int)((tag) & 0xff))
#define TAG(kind, payload) ((uint64_t)(kind) | ((uint64_t)(payload) << 8))
#define HOLDS(entry) (KIND_OF((entry).tag) >= T_NODE)

/* A static that can be changed in place: where it begins and ends on the trail. */
typedef struct { PyObject *object; size_t start, stop; } Mutable;

/* What a value on the stack of things to visit is; in the low bits of its pointer. */
enum { VISIT_TREE, VISIT_STATIC, VISIT_HASHABLE };

#define VISITED(x, visit) ((uintptr_t)(x) | (uintptr_t)(visit))
#define POINTER(x) ((PyObject *)((x) & ~(uintptr_t)3))
#define VISIT(x) ((int)((x) & 3))

/* A compound part of a static, read as a node or not, and where on the trail it was first
met. */
typedef struct { uintptr_t part; size_t where; } Seen;

#define SMALL_TRAIL 160
#define SMALL_ARRAYS 64
#define SMALL_PENDING 128
#define SMALL_FIELDS 48
#define LONG_TRAIL 10000

typedef struct {
    Entry *trail;
    size_t n_trail, max_trail;
    /* Owned. The first place is free, for the vectorcall. */
    PyObject **arrays;
    size_t n_arrays, max_arrays;
    uintptr_t *pending;
    size_t n_pending, max_pending;
    Mutable *mutables;
    size_t n_mutables, max_mutables;
    /* Of the static at hand; open addressing, by identity. */
    Seen *seen;
    size_t n_seen, max_seen;
    /* The length of a trail at which Python has to say that the tree ends at all. */
    size_t limit;
    /* What is being visited, off the stack. */
    PyObject *current_tree, *current_static;
    char owning, numpy, tracer, is_mutable;
    Entry small_trail[SMALL_TRAIL];
    PyObject *small_arrays[SMALL_ARRAYS + 1];
    uintptr_t small_pending[SMALL_PENDING];
} Walk;

/* Of the last walk that was too long for the stack, for the next: allocating them anew
is a tenth of what a call with 200 statics costs. */
static struct {
    Entry *trail;
    PyObject **arrays;
    uintptr_t *pending;
    size_t max_trail, max_arrays, max_pending;
} spare;

#define TAKE(w, name, size)                                                     \
    do {                                                                        \
        (w)->name = spare.name != NULL ? spare.name : (w)->small_##name;        \
        (w)->max_##name = spare.name != NULL ? spare.max_##name : (size);       \
        spare.name = NULL;                                                      \
    } while (0)

#define GIVE_BACK(w, name)                                                      \
    do {                                                                        \
        if ((w)->name == (w)->small_##name) break;                              \
        if (spare.name == NULL && (w)->max_##name <= LONG_TRAIL) {              \
            spare.name = (w)->name;                                             \
            spare.max_##name = (w)->max_##name;                                 \
        } else {                                                                \
            PyMem_Free((w)->name);                                              \
        }                                                                       \
    } while (0)

static void walk_init(Walk *w) {
    memset(w, 0, offsetof(Walk, small_trail));
    TAKE(w, trail, SMALL_TRAIL);
    TAKE(w, arrays, SMALL_ARRAYS);
    TAKE(w, pending, SMALL_PENDING);
    w->limit = LONG_TRAIL;
}

static void clear_seen(Walk *w) {
    for (size_t i = 0; i < w->max_seen; i++)
        if (w->owning) Py_XDECREF(POINTER(w->seen[i].part));
    if (w->seen != NULL) memset(w->seen, 0, w->max_seen * sizeof(Seen));
    w->n_seen = 0;
}

/* Drops what a walk holds, except its arrays. */
static void walk_release(Walk *w) {
    if (w->n_seen) clear_seen(w);
    if (w->owning) {
        w->owning = 0;
        for (size_t i = 0; i < w->n_trail; i++)
            if (HOLDS(w->trail[i])) Py_DECREF(w->trail[i].as.object);
        for (size_t i = 0; i < w->n_pending; i++) Py_DECREF(POINTER(w->pending[i]));
        for (size_t i = 0; i < w->n_mutables; i++) Py_DECREF(w->mutables[i].object);
    }
    w->n_trail = w->n_pending = w->n_mutables = 0;
}

static void walk_free(Walk *w) {
    walk_release(w);
    for (size_t i = 0; i < w->n_arrays; i++) Py_DECREF(w->arrays[i + 1]);
    GIVE_BACK(w, trail);
    GIVE_BACK(w, arrays);
    GIVE_BACK(w, pending);
    PyMem_Free(w->mutables);
    PyMem_Free(w->seen);
}

/* From here on Python may run: hold on to all that the walk has met. */
static void own_everything(Walk *w) {
    if (w->owning) return;
    w->owning = 1;
    for (size_t i = 0; i < w->n_trail; i++)
        if (HOLDS(w->trail[i])) Py_INCREF(w->trail[i].as.object);
    for (size_t i = 0; i < w->n_pending; i++) Py_INCREF(POINTER(w->pending[i]));
    for (size_t i = 0; i < w->n_mutables; i++) Py_INCREF(w->mutables[i].object);
    for (size_t i = 0; w->n_seen && i < w->max_seen; i++)
        Py_XINCREF(POINTER(w->seen[i].part));
    Py_XINCREF(w->current_tree);
    Py_XINCREF(w->current_static);
}

/* An array twice as large, with the same contents and off the stack; NULL for want of
memory, and then the old one is as it was. */
static void *grown(void *data, size_t *max, size_t extra, size_t size, void *small) {
    size_t n = *max ? *max * 2 : 16;
    void *bigger = data == small ? PyMem_Malloc((n + extra) * size)
                                 : PyMem_Realloc(data, (n + extra) * size);
    if (bigger == NULL) return PyErr_NoMemory();
    if (data == small && small != NULL) memcpy(bigger, small, (*max + extra) * size);
    *max = n;
    return bigger;
}

/* Not by a `void **`: pointers of another type may not be written through one. */
#define GROW(data, max, extra, small)                                        \
    do {                                                                     \
        void *bigger = grown(data, &(max), extra, sizeof(*(data)), small);   \
        if (bigger == NULL) return -1;                                       \
        (data) = bigger;                                                     \
    } while (0)

static inline int push(Walk *w, PyObject *x, int visit) {
    if (w->n_pending == w->max_pending)
        GROW(w->pending, w->max_pending, 0, w->small_pending);
    if (w->owning) Py_INCREF(x);
    w->pending[w->n_pending++] = VISITED(x, visit);
    return 0;
}

static inline int add_bits(Walk *w, uint64_t tag, uint64_t bits) {
    if (w->n_trail == w->max_trail) GROW(w->trail, w->max_trail, 0, w->small_trail);
    Entry *entry = &w->trail[w->n_trail++];
    entry->tag = tag;
    entry->as.bits = bits;
    return 0;
}

static inline int add_object(Walk *w, uint64_t tag, PyObject *x) {
    if (add_bits(w, tag, 0) < 0) return -1;
    w->trail[w->n_trail - 1].as.object = x;
    if (w->owning) Py_INCREF(x);
    return 0;
}

static inline int add_array(Walk *w, PyObject *x) {
    if (w->n_arrays == w->max_arrays)
        GROW(w->arrays, w->max_arrays, 1, w->small_arrays);
    Entry *last = w->n_trail ? &w->trail[w->n_trail - 1] : NULL;
    if (last != NULL && KIND_OF(last->tag) == T_ARRAYS)
        last->as.bits++;
    else if (add_bits(w, T_ARRAYS, 1) < 0)
        return -1;
    Py_INCREF(x);
    w->arrays[++w->n_arrays] = x;
    return 0;
}

/* --- what is known of types ---------------------------------------------------------- */

/* The order in which a dictionary of fields was found to have them. */
typedef struct { PyObject **keys; uint16_t *places; } Layout;

typedef struct {
    PyTypeObject *type; /* borrowed: `reference` takes the record away with the type */
    PyObject *reference;
    unsigned int version; /* the type's, 0 if it cannot change */
    int node, kind, hashable, is_mutable;
    PyObject *data;  /* the function of `KIND_PARTS`, `KIND_KEY` */
    PyObject *flatten; /* of a node that C does not know */
    PyObject *names; /* a tuple: of the dynamic, then of the static fields */
    Py_ssize_t n_dynamic;
    Layout layouts[2];
    int next_layout;
} Record;

static Record **records;
static size_t n_records, records_mask;

#define SLOT_OF(type) ((((uintptr_t)(type) >> 4) ^ ((uintptr_t)(type) >> 12)) & records_mask)

static void record_free(Record *record) {
    Py_XDECREF(record->reference);
    Py_XDECREF(record->data);
    Py_XDECREF(record->flatten);
    for (int i = 0; i < 2; i++) {
        if (record->layouts[i].keys != NULL)
            for (Py_ssize_t j = 0; j < PyTuple_GET_SIZE(record->names); j++)
                Py_DECREF(record->layouts[i].keys[j]);
        PyMem_Free(record->layouts[i].keys);
        PyMem_Free(record->layouts[i].places);
    }
    Py_XDECREF(record->names);
    PyMem_Free(record);
}

static inline Record *find_record(PyTypeObject *type) {
    if (records == NULL) return NULL;
    for (size_t i = SLOT_OF(type);; i = (i + 1) & records_mask) {
        Record *record = records[i];
        if (record == NULL || record->type == type) return record;
    }
}

static void place_record(Record *record) {
    size_t i = SLOT_OF(record->type);
    while (records[i] != NULL) i = (i + 1) & records_mask;
    records[i] = record;
    n_records++;
}

/* Keeps the records of all types but one (or none at all), in a table of some size. */
static int rebuild_records(size_t size, PyTypeObject *without, int keep) {
    Record **old = records;
    size_t n_old = old ? records_mask + 1 : 0;
    Record **table = PyMem_Calloc(size, sizeof(*table));
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    records = table;
    records_mask = size - 1;
    n_records = 0;
    for (size_t i = 0; i < n_old; i++)
        if (old[i] != NULL && keep && old[i]->type != without) {
            place_record(old[i]);
            old[i] = NULL;
        }
    for (size_t i = 0; i < n_old; i++)
        if (old[i] != NULL) record_free(old[i]);
    PyMem_Free(old);
    return 0;
}

static void forget_record(PyTypeObject *type) {
    if (find_record(type) != NULL && rebuild_records(records_mask + 1, type, 1) < 0) {
        /* No memory for a table without it: leave a record that is never found. */
        PyErr_Clear();
        find_record(type)->type = NULL;
    }
}

/* Called with the weak reference of a type that has died. */
static PyObject *type_died(PyObject *self, PyObject *reference) {
    (void)self;
    for (size_t i = 0; records != NULL && i <= records_mask; i++)
        if (records[i] != NULL && records[i]->reference == reference) {
            if (records[i]->type != NULL) forget_record(records[i]->type);
            break;
        }
    Py_RETURN_NONE;
}

static PyMethodDef type_died_def = {"type_died", type_died, METH_O, NULL};
static PyObject *type_died_function;

static int as_int(PyObject *x, Py_ssize_t i) {
    PyObject *item = PyTuple_GetItem(x, i);
    return item == NULL ? -1 : (int)PyLong_AsLong(item);
}

/* Asks Python about the type of `x`. The walk must own what it holds. */
static Record *ask_about(PyObject *x) {
    /* Owned: somebody may give `x` another class meanwhile. */
    PyTypeObject *type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(x));
    PyObject *node = PyObject_CallOneArg(py_classify, x), *policy = NULL;
    Record *record = NULL, *made = NULL;
    if (node == NULL) goto done;
    policy = PyObject_CallOneArg(py_policy_of, (PyObject *)type);
    if (policy == NULL) goto done;
    record = PyMem_Calloc(1, sizeof(Record));
    if (record == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    record->type = type;
    /* Node(kind, dynamic, static, flatten); Policy(kind, data, hashable, mutable) */
    record->node = as_int(node, 0);
    record->kind = as_int(policy, 0);
    record->hashable = as_int(policy, 2);
    record->is_mutable = as_int(policy, 3);
    if (PyErr_Occurred()) goto done;
    record->flatten = Py_NewRef(PyTuple_GET_ITEM(node, 3));
    PyObject *data = PyTuple_GET_ITEM(policy, 1);
    if (record->node == NODE_MODULE || record->node == NODE_DATACLASS) {
        record->n_dynamic = PyTuple_GET_SIZE(PyTuple_GET_ITEM(node, 1));
        record->names =
            PySequence_Concat(PyTuple_GET_ITEM(node, 1), PyTuple_GET_ITEM(node, 2));
        if (record->names == NULL) goto done;
    } else if (record->kind == KIND_FIELDS) {
        record->names = Py_NewRef(data);
        record->n_dynamic = PyTuple_GET_SIZE(data);
    }
    record->data = Py_NewRef(data);
    /* A class may be given another `__eq__`; its version then changes. */
    if ((type->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
        !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE))
        record->version = type->tp_version_tag ? type->tp_version_tag : (unsigned)-1;
    record->reference = PyWeakref_NewRef((PyObject *)type, type_died_function);
    if (record->reference == NULL) goto done;
    forget_record(type); /* Python may have made one in between */
    if (records == NULL || 2 * (n_records + 1) > records_mask + 1) {
        size_t size = records ? 2 * (records_mask + 1) : 256;
        if (rebuild_records(size, NULL, 1) < 0) goto done;
    }
    place_record(record);
    if (record->node == NODE_ARRAY && array_type == NULL)
        array_type = (PyTypeObject *)Py_NewRef((PyObject *)type);
    made = record;
    if (Py_TYPE(x) != type) {
        PyErr_SetString(PyExc_RuntimeError, "an object has changed its class");
        record = NULL; /* stays in the table, for as long as the type lives */
        made = NULL;
    }
done:
    if (made == NULL && record != NULL) record_free(record);
    Py_XDECREF(node);
    Py_XDECREF(policy);
    Py_DECREF(type);
    return made;
}

static inline int is_current(const Record *record, const PyTypeObject *type) {
    return record->version == 0 || record->version == type->tp_version_tag;
}

static inline Record *record_of(Walk *w, PyObject *x) {
    PyTypeObject *type = Py_TYPE(x);
    Record *record = find_record(type);
    if (record != NULL && is_current(record, type)) return record;
    own_everything(w);
    return ask_about(x);
}

/* Types may have become nodes since they were met as statics. */
static int drop_records_if_grown(void) {
    if (registry == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "setup() has not been called");
        return -1;
    }
    if (PyDict_GET_SIZE(registry) == n_registered) return 0;
    n_registered = PyDict_GET_SIZE(registry);
    return records == NULL ? 0 : rebuild_records(records_mask + 1, NULL, 0);
}

/* --- fields ----------------------------------------------------------------------- */

/* Calls what allocates, and runs no Python by itself: before 3.12, an allocation may start
the garbage collector, and that finalizers and weak references' callbacks. */
#if PY_VERSION_HEX < 0x030C0000
#define WITHOUT_COLLECTOR(call)          \
    do {                                 \
        int enabled = PyGC_Disable();    \
        call;                            \
        if (enabled) PyGC_Enable();      \
    } while (0)
#else
#define WITHOUT_COLLECTOR(call) call
#endif

/* The `__dict__` of an instance, without running Python. */
static inline PyObject *dict_of(PyObject *x) {
    PyObject *dict;
    WITHOUT_COLLECTOR(dict = PyObject_GenericGetDict(x, NULL));
    return dict;
}

/* Reads the fields of an instance, borrowed, in the order of `record->names`.

Returns 1 if they are there (of a Module, and nothing else is), 0 if not. A dictionary is
gone through in order and compared with the orders in which it was found before: that
is quicker than looking names up, and runs nobody's `__eq__`. */
static int read_fields(Record *record, PyObject *dict, PyObject **out) {
    Py_ssize_t n = PyTuple_GET_SIZE(record->names), size = PyDict_GET_SIZE(dict);
    /* To Equinox a Module with other attributes is another Module. */
    if (record->node == NODE_DATACLASS ? size < n : size != n) return 0;
    PyObject *key, *value;
    Py_ssize_t position = 0;
    for (int i = 0; i < 2; i++) {
        Layout *layout = &record->layouts[i];
        if (layout->keys == NULL) continue;
        Py_ssize_t j = 0;
        for (position = 0; PyDict_Next(dict, &position, &key, &value); j++) {
            if (key != layout->keys[j]) break;
            out[layout->places[j]] = value;
        }
        if (j == n) return 1;
    }
    /* Another order: learn it, in place of the older of two. */
    Layout learnt = {PyMem_Calloc(n + 1, sizeof(PyObject *)),
                     PyMem_Calloc(n + 1, sizeof(uint16_t))};
    Py_ssize_t j = 0;
    int others = 0;
    if (learnt.keys == NULL || learnt.places == NULL || n > UINT16_MAX) goto no;
    for (position = 0; j < n && PyDict_Next(dict, &position, &key, &value);) {
        Py_ssize_t place = 0;
        if (!PyUnicode_CheckExact(key)) goto no;
        while (place < n && PyTuple_GET_ITEM(record->names, place) != key &&
               PyUnicode_Compare(PyTuple_GET_ITEM(record->names, place), key) != 0)
            place++;
        if (place == n) {
            if (size == n) goto no;
            others = 1;
            continue;
        }
        learnt.keys[j] = key;
        learnt.places[j++] = (uint16_t)place;
        out[place] = value;
    }
    if (j < n) goto no;
    if (others) { /* in between, so their order is not worth learning */
        PyMem_Free(learnt.keys);
        PyMem_Free(learnt.places);
        return 1;
    }
    for (j = 0; j < n; j++) Py_INCREF(learnt.keys[j]);
    Layout *old = &record->layouts[record->next_layout];
    record->next_layout ^= 1;
    Layout dropped = *old;
    *old = learnt;
    if (dropped.keys != NULL)
        for (j = 0; j < n; j++) Py_DECREF(dropped.keys[j]);
    PyMem_Free(dropped.keys);
    PyMem_Free(dropped.places);
    return 1;
no:
    PyMem_Free(learnt.keys);
    PyMem_Free(learnt.places);
    return 0;
}

/* --- statics ---------------------------------------------------------------------- */

static uint64_t double_bits(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

/* Adds a key that Python has made, with the type of `x`; takes the reference. */
static int add_key(Walk *w, PyObject *x, PyObject *key) {
    if (key == NULL) return -1;
    Py_hash_t hash = PyObject_Hash(key);
    int failed = (hash == -1 && PyErr_Occurred()) ||
                 add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
                 add_object(w, TAG(T_KEY, hash), key) < 0;
    Py_DECREF(key);
    return failed ? -1 : 0;
}

static Seen *seen_place(Walk *w, uintptr_t part) {
    size_t k = (part >> 4) & (w->max_seen - 1);
    while (w->seen[k].part != 0 && w->seen[k].part != part)
        k = (k + 1) & (w->max_seen - 1);
    return &w->seen[k];
}

static int grow_seen(Walk *w) {
    Seen *old = w->seen;
    size_t n_old = w->max_seen, size = n_old ? 2 * n_old : 32;
    Seen *fresh = PyMem_Calloc(size, sizeof(Seen));
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    w->seen = fresh;
    w->max_seen = size;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].part != 0) *seen_place(w, old[i].part) = old[i];
    PyMem_Free(old);
    return 0;
}

/* Writes a static of a type that needs no record on the trail: 1 if it is one, 0 if not,
-1 for an error. What is known of other types must not decide what stands where. */
static inline int add_atom(Walk *w, PyObject *x) {
    PyTypeObject *type = Py_TYPE(x);
    if (x == Py_None || type == &PyBool_Type || type == &PyFunction_Type)
        return add_object(w, T_IDENTITY, x) < 0 ? -1 : 1;
    if (type == &PyUnicode_Type) return add_object(w, T_STR, x) < 0 ? -1 : 1;
    if (type == &PyLong_Type) {
        int overflow;
        long long value = PyLong_AsLongLongAndOverflow(x, &overflow);
        int failed = overflow ? add_object(w, T_BIGINT, x) : add_bits(w, T_INT, (uint64_t)value);
        return failed < 0 ? -1 : 1;
    }
    if (type == &PyFloat_Type)
        return add_bits(w, T_FLOAT, double_bits(PyFloat_AS_DOUBLE(x))) < 0 ? -1 : 1;
    if (type == &PyBytes_Type) return add_object(w, T_BYTES, x) < 0 ? -1 : 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(function_types); i++)
        if (PyTuple_GET_ITEM(function_types, i) == (PyObject *)type)
            return add_object(w, T_IDENTITY, x) < 0 ? -1 : 1;
    return 0;
}

/* Whether `==` of a member of a set, and of what is in it, mixes nothing up. */
static int is_plain(PyObject *x, int depth) {
    PyTypeObject *type = Py_TYPE(x);
    if (type == &PyUnicode_Type || type == &PyLong_Type || x == Py_None ||
        type == &PyFunction_Type || type == &PyType_Type)
        return 1;
    if (type != &PyTuple_Type || depth == 0) return 0;
    for (Py_ssize_t i = 0; i < Py_SIZE(x); i++)
        if (!is_plain(PyTuple_GET_ITEM(x, i), depth - 1)) return 0;
    return 1;
}

/* A set of such members, which is compared whole: 1 if it is one, 0 if not, -1 for an
error. A seventh of what a key made by Python costs. */
static int add_plain_set(Walk *w, PyObject *x) {
    PyObject *member, *iterator, *kept;
    int plain = 1;
    WITHOUT_COLLECTOR(iterator = PyObject_GetIter(x));
    if (iterator == NULL) return -1;
    while (plain && (member = PyIter_Next(iterator)) != NULL) {
        plain = is_plain(member, 3);
        Py_DECREF(member);
    }
    Py_DECREF(iterator);
    if (!plain) return 0;
    if (PyFrozenSet_CheckExact(x)) {
        kept = Py_NewRef(x);
    } else { /* which can be changed: keep a copy */
        own_everything(w);
        WITHOUT_COLLECTOR(kept = PyFrozenSet_New(x));
        if (kept == NULL) return -1;
        w->is_mutable = 1;
    }
    Py_hash_t hash = PyObject_Hash(kept);
    int failed = (hash == -1 && PyErr_Occurred()) ||
                 add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
                 add_object(w, TAG(T_PURE, hash), kept) < 0;
    Py_DECREF(kept);
    return failed ? -1 : 1;
}

/* Takes what was written since back from the trail. */
static void truncate_trail(Walk *w, size_t n) {
    while (w->n_trail > n) {
        Entry *entry = &w->trail[--w->n_trail];
        if (w->owning && HOLDS(*entry)) Py_DECREF(entry->as.object);
    }
}

/* What is compared part by part: its type and number of parts, and the parts. From the
first on that has parts itself they are to be visited, those before `n_children` as nodes;
and then it is written only once: linear for any graph. */
static int add_parts(Walk *w, PyObject *x, int tag, PyObject *const *parts,
                     Py_ssize_t n_children, Py_ssize_t n, int visit, size_t start) {
    size_t begin = w->n_trail;
    Py_ssize_t later = 0;
    if (add_object(w, TAG(tag, n), (PyObject *)Py_TYPE(x)) < 0) return -1;
    for (; later < n; later++) {
        int added = add_atom(w, parts[later]);
        if (added < 0) return -1;
        if (!added) break;
    }
    if (later == n) return 0;
    if (2 * (w->n_seen + 1) > w->max_seen && grow_seen(w) < 0) return -1;
    uintptr_t part = VISITED(x, tag == T_NODE ? VISIT_TREE : VISIT_STATIC);
    Seen *place = seen_place(w, part);
    if (place->part == part) {
        truncate_trail(w, begin);
        return add_bits(w, T_AGAIN, place->where - start);
    }
    if (w->owning) Py_INCREF(x);
    *place = (Seen){part, begin};
    w->n_seen++;
    for (Py_ssize_t i = n - 1; i >= later; i--)
        if (push(w, parts[i], i < n_children ? VISIT_TREE : visit) < 0) return -1;
    return 0;
}

static int add_compound(Walk *w, PyObject *x, PyObject *const *parts, Py_ssize_t n,
                        int visit, size_t start) {
    return add_parts(w, x, T_STATIC, parts, 0, n, visit, start);
}

static int add_dict_parts(Walk *w, PyObject *x, int visit, size_t start) {
    Py_ssize_t n = 2 * PyDict_GET_SIZE(x), i = 0, position = 0;
    PyObject *key, *value, **parts;
    size_t begin = w->n_trail;
    int added = 1;
    /* A dictionary of atoms, say a vocabulary, without a copy: 3 ms for 100,000 words. */
    if (add_object(w, TAG(T_STATIC, n), (PyObject *)Py_TYPE(x)) < 0) return -1;
    while (added > 0 && PyDict_Next(x, &position, &key, &value))
        if ((added = add_atom(w, key)) > 0) added = add_atom(w, value);
    if (added) return added < 0 ? -1 : 0;
    truncate_trail(w, begin);
    if ((parts = PyMem_Malloc((n + 1) * sizeof(PyObject *))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    position = 0;
    while (i < n && PyDict_Next(x, &position, &key, &value)) {
        parts[i++] = key;
        parts[i++] = value;
    }
    int failed = add_compound(w, x, parts, i, visit, start);
    PyMem_Free(parts);
    return failed;
}

static int add_parts_of_sequence(Walk *w, PyObject *x, PyObject *parts, int visit,
                                 size_t start) {
    if (parts == NULL) return -1;
    PyObject *fast = PySequence_Fast(parts, "expected a sequence of parts");
    Py_DECREF(parts);
    if (fast == NULL) return -1;
    int failed = add_compound(w, x, PySequence_Fast_ITEMS(fast),
                              PySequence_Fast_GET_SIZE(fast), visit, start);
    Py_DECREF(fast);
    return failed;
}

static PyTypeObject SpecType;

/* The attributes of an instance that are to be compared. */
static int add_fields(Walk *w, Record *record, PyObject *x, int visit, size_t start) {
    PyObject *small[SMALL_FIELDS];
    Py_ssize_t n = PyTuple_GET_SIZE(record->names);
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    if (n <= SMALL_FIELDS && read_fields(record, dict, small) == 1) {
        /* The instance keeps its dictionary alive. */
        Py_DECREF(dict);
        return add_compound(w, x, small, n, visit, start);
    }
    Py_DECREF(dict);
    PyObject *names = Py_NewRef(record->names);
    own_everything(w);
    PyObject *parts = PyList_New(0);
    for (Py_ssize_t i = 0; parts != NULL && i < n; i++) {
        PyObject *value = PyObject_GetAttr(x, PyTuple_GET_ITEM(names, i));
        if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            value = Py_NewRef((PyObject *)&SpecType); /* which no attribute is */
        }
        if (value == NULL || PyList_Append(parts, value) < 0) Py_CLEAR(parts);
        Py_XDECREF(value);
    }
    Py_DECREF(names);
    return add_parts_of_sequence(w, x, parts, visit, start);
}

/* What the registered flatten function of a node gives: a tuple, which stays as it is
while the static data is walked, and the static data. */
static int flatten_node(Record *record, PyObject *x, PyObject **children, PyObject **aux) {
    PyObject *flatten = Py_NewRef(record->flatten);
    PyObject *flat = PyObject_CallOneArg(flatten, x);
    Py_DECREF(flatten);
    if (flat == NULL) return -1;
    if (PyTuple_Check(flat) && PyTuple_GET_SIZE(flat) == 2) {
        *aux = Py_NewRef(PyTuple_GET_ITEM(flat, 1));
        *children = PySequence_Tuple(PyTuple_GET_ITEM(flat, 0));
        if (*children == NULL) Py_DECREF(*aux);
    } else {
        PyErr_SetString(PyExc_TypeError, "a flatten function must return two values");
        *children = NULL;
    }
    Py_DECREF(flat);
    return *children == NULL ? -1 : 0;
}

/* A node below a static, by its flatten function. */
static int add_flattened(Walk *w, Record *record, PyObject *x, size_t start) {
    own_everything(w);
    PyObject *children = NULL, *aux = NULL, *parts;
    if (flatten_node(record, x, &children, &aux) < 0) return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(children);
    int failed = -1;
    if ((parts = PyTuple_New(n + 1)) != NULL) {
        for (Py_ssize_t i = 0; i < n; i++)
            PyTuple_SET_ITEM(parts, i, Py_NewRef(PyTuple_GET_ITEM(children, i)));
        PyTuple_SET_ITEM(parts, n, Py_NewRef(aux));
        failed = add_parts(w, x, T_NODE, ((PyTupleObject *)parts)->ob_item, n, n + 1,
                           VISIT_STATIC, start);
        Py_DECREF(parts);
    }
    Py_DECREF(children);
    Py_DECREF(aux);
    return failed;
}

/* A dictionary below a static that is a node: its values, then its sorted keys. */
static int add_dict_node(Walk *w, PyObject *x, size_t start) {
    own_everything(w);
    PyObject *keys = PyObject_CallOneArg(py_sort_keys, x), *parts = NULL;
    if (keys == NULL) return -1;
    Py_ssize_t n = PyList_GET_SIZE(keys);
    int failed = -1;
    if ((parts = PyTuple_New(2 * n)) == NULL) goto done;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *key = PyList_GET_ITEM(keys, i), *value = PyObject_GetItem(x, key);
        if (value == NULL) goto done;
        PyTuple_SET_ITEM(parts, i, value);
        PyTuple_SET_ITEM(parts, n + i, Py_NewRef(key));
    }
    failed = add_parts(w, x, T_NODE, ((PyTupleObject *)parts)->ob_item, n, 2 * n,
                       VISIT_STATIC, start);
done:
    Py_DECREF(keys);
    Py_XDECREF(parts);
    return failed;
}

/* A Module below a static, or a dataclass. */
static int add_module(Walk *w, Record *record, PyObject *x, size_t start) {
    PyObject *small[SMALL_FIELDS], *dict = dict_of(x);
    Py_ssize_t n = PyTuple_GET_SIZE(record->names);
    if (dict == NULL) return -1;
    int regular = n <= SMALL_FIELDS && read_fields(record, dict, small);
    Py_DECREF(dict); /* the instance has it */
    if (!regular)
        return add_bits(w, T_FLATTENED, 0) < 0 ? -1 : add_flattened(w, record, x, start);
    return add_parts(w, x, T_NODE, small, record->n_dynamic, n, VISIT_STATIC, start);
}

static int add_static(Walk *w, PyObject *x, int visit, size_t start);

/* A Module that is a static, and what is below it: as `walk_node`, but for arrays. */
static int add_node(Walk *w, PyObject *x, size_t start) {
    PyTypeObject *type = Py_TYPE(x);
    int added = add_atom(w, x);
    if (added) return added < 0 ? -1 : 0;
    if (type == &PyTuple_Type || type == &PyList_Type)
        return add_parts(w, x, T_NODE, PySequence_Fast_ITEMS(x), Py_SIZE(x), Py_SIZE(x),
                         VISIT_STATIC, start);
    if (type == &PyDict_Type) return add_dict_node(w, x, start);
    Record *record = record_of(w, x);
    if (record == NULL) return -1;
    switch (record->node) {
    case NODE_TRACER:
    case NODE_OTHER_ARRAY:
    case NODE_ARRAY:
    case NODE_NUMPY:
        own_everything(w);
        return add_key(w, x, PyObject_CallOneArg(py_array_key, x));
    case NODE_NAMEDTUPLE:
        return add_parts(w, x, T_NODE, ((PyTupleObject *)x)->ob_item, Py_SIZE(x),
                         Py_SIZE(x), VISIT_STATIC, start);
    case NODE_MODULE:
    case NODE_DATACLASS:
        return add_module(w, record, x, start);
    case NODE_CUSTOM:
    case NODE_DEFAULTDICT:
    case NODE_ORDERED_DICT:
        return add_flattened(w, record, x, start);
    default:
        return add_static(w, x, VISIT_STATIC, start);
    }
}

/* Whether a static leaf has a hash. (`Hashable` of the policy says how to tell.) */
static int check_hashable(Walk *w, PyObject *x, int hashable) {
    if (hashable == HASHABLE_ASK) {
        own_everything(w);
        if (PyObject_Hash(x) == -1 && PyErr_Occurred()) return -1;
    } else if (hashable == HASHABLE_NO) {
        PyErr_SetString(PyExc_TypeError, "a static leaf cannot be hashed");
        return -1;
    }
    return 0;
}

static int add_by_record(Walk *w, PyObject *x, int visit, size_t start) {
    Record *record = record_of(w, x);
    if (record == NULL) return -1;
    int kind = record->kind, hashable = record->hashable;
    if (record->is_mutable) w->is_mutable = 1;
    if (visit == VISIT_HASHABLE && hashable == HASHABLE_ASK) {
        visit = VISIT_STATIC; /* asked of the whole */
        if (check_hashable(w, x, hashable) < 0) return -1;
        if ((record = record_of(w, x)) == NULL) return -1;
        kind = record->kind;
    } else if (visit == VISIT_HASHABLE && check_hashable(w, x, hashable) < 0) {
        return -1;
    }
    PyObject *function;
    Py_hash_t hash;
    switch (kind) {
    case KIND_IDENTITY:
        /* With its class, if that can be another one day. */
        if (record->version && add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0) return -1;
        return add_object(w, T_IDENTITY, x);
    case KIND_TUPLE: /* and its subclasses, by the base type's own means */
        return add_compound(w, x, ((PyTupleObject *)x)->ob_item, Py_SIZE(x), visit, start);
    case KIND_FIELDS:
        return add_fields(w, record, x, visit, start);
    case KIND_NODE:
        if (record->node == NODE_MODULE) return add_module(w, record, x, start);
        return add_flattened(w, record, x, start); /* a jitted function */
    case KIND_METHOD:
        if (add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
            add_object(w, T_IDENTITY, PyMethod_GET_SELF(x)) < 0)
            return -1;
        return push(w, PyMethod_GET_FUNCTION(x), VISIT_STATIC);
    case KIND_PURE:
        /* No code of the user's, but NumPy allocates to hash and compare its dtypes, and
        before Python 3.12 an allocation may start the garbage collector. */
        own_everything(w);
        hash = PyObject_Hash(x);
        if (hash == -1 && PyErr_Occurred()) return -1;
        return add_object(w, TAG(T_PURE, hash), x);
    case KIND_OPAQUE:
        own_everything(w);
        hash = PyObject_Hash(x);
        if (hash != -1 || !PyErr_Occurred())
            return add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0
                       ? -1
                       : add_object(w, TAG(T_OPAQUE, hash), x);
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return -1;
        PyErr_Clear();
        return add_key(w, x, PyObject_CallOneArg(py_opaque_key, x));
    case KIND_PARTS:
        own_everything(w);
        function = Py_NewRef(record->data);
        PyObject *parts = PyObject_CallOneArg(function, x);
        Py_DECREF(function);
        return add_parts_of_sequence(w, x, parts, visit, start);
    case KIND_KEY:
        own_everything(w);
        function = Py_NewRef(record->data);
        PyObject *key = PyObject_CallOneArg(function, x);
        Py_DECREF(function);
        return add_key(w, x, key);
    }
    PyErr_SetString(PyExc_SystemError, "eqx_fastjit: unknown kind of static");
    return -1;
}

/* Writes one value of a static on the trail; its parts are left to be visited. */
static int add_static(Walk *w, PyObject *x, int visit, size_t start) {
    PyTypeObject *type = Py_TYPE(x);
    int added = add_atom(w, x);
    if (added) return added < 0 ? -1 : 0;
    if (type == &PyTuple_Type)
        return add_compound(w, x, ((PyTupleObject *)x)->ob_item, Py_SIZE(x), visit, start);
    if (type == &PyComplex_Type) {
        Py_complex value = PyComplex_AsCComplex(x);
        return add_object(w, T_STATIC, (PyObject *)type) < 0 ||
                       add_bits(w, T_FLOAT, double_bits(value.real)) < 0
                   ? -1
                   : add_bits(w, T_FLOAT, double_bits(value.imag));
    }
    if (type == &PyList_Type || type == &PyDict_Type) {
        w->is_mutable = 1;
        if (visit == VISIT_HASHABLE) return check_hashable(w, x, HASHABLE_NO);
        if (type == &PyDict_Type) return add_dict_parts(w, x, visit, start);
        return add_compound(w, x, ((PyListObject *)x)->ob_item, Py_SIZE(x), visit, start);
    }
    if (type == &PySlice_Type && visit == VISIT_STATIC) {
        PySliceObject *slice = (PySliceObject *)x;
        PyObject *parts[] = {slice->start, slice->stop, slice->step};
        return add_compound(w, x, parts, 3, visit, start);
    }
    if (type == &PyFrozenSet_Type || (type == &PySet_Type && visit == VISIT_STATIC)) {
        if ((added = add_plain_set(w, x)) != 0) return added < 0 ? -1 : 0;
    }
    return add_by_record(w, x, visit, start);
}

/* A static leaf or field, whole. Iterative: statics may be nested to any depth. */
static int walk_static(Walk *w, PyObject *root, int visit) {
    size_t base = w->n_pending, start = w->n_trail;
    int added = add_atom(w, root);
    if (added) return added < 0 ? -1 : 0;
    w->is_mutable = 0;
    /* Whoever calls holds `root`. */
    if (add_static(w, root, visit, start) < 0) return -1;
    while (w->n_pending > base) {
        uintptr_t next = w->pending[--w->n_pending];
        PyObject *x = w->current_static = POINTER(next);
        int failed = VISIT(next) == VISIT_TREE ? add_node(w, x, start)
                                               : add_static(w, x, VISIT(next), start);
        w->current_static = NULL;
        if (w->owning) Py_DECREF(x);
        if (failed < 0) return -1;
    }
    if (w->n_seen) clear_seen(w);
    if (!w->is_mutable) return 0;
    if (w->n_mutables == w->max_mutables) GROW(w->mutables, w->max_mutables, 0, NULL);
    if (w->owning) Py_INCREF(root);
    w->mutables[w->n_mutables++] = (Mutable){root, start, w->n_trail};
    return 0;
}

/* --- trees ------------------------------------------------------------------------ */

/* Leaves children to be visited, before all that is left already. */
static inline int push_children(Walk *w, PyObject *const *children, Py_ssize_t n) {
    for (Py_ssize_t i = n - 1; i >= 0; i--)
        if (push(w, children[i], VISIT_TREE) < 0) return -1;
    return 0;
}

/* Visits the arrays that come first at once, and leaves the others for later. Only where
nothing is to come between on the trail: an array would else stand elsewhere on it than a
tracer in its place does, and be another specialization. */
static inline int visit_children(Walk *w, PyObject *const *children, Py_ssize_t n) {
    Py_ssize_t first = 0;
    while (first < n && Py_TYPE(children[first]) == array_type)
        if (add_array(w, children[first++]) < 0) return -1;
    return push_children(w, children + first, n - first);
}

typedef struct { PyObject *key, *value; Py_ssize_t index; } Item;

static int compare_str(const void *a, const void *b) {
    return PyUnicode_Compare(((const Item *)a)->key, ((const Item *)b)->key);
}

static int compare_int(const void *a, const void *b) {
    PyObject *x = ((const Item *)a)->key, *y = ((const Item *)b)->key;
    return PyObject_RichCompareBool(x, y, Py_GT) - PyObject_RichCompareBool(x, y, Py_LT);
}

/* Orders of keys that were sorted before, by the identity of the keys, which are kept:
sorting the 200 keys of a call anew took 11 of its 21 us. */
#define FEW_KEYS 4
#define MANY_KEYS 1024
typedef struct { Py_ssize_t n; PyObject **keys; uint16_t *order; } Sorted;
static Sorted sorted_before[64];

/* Takes the place of what was sorted before with the same slot. */
static void remember_order(Sorted *place, const Item *items, Py_ssize_t n) {
    PyObject **keys = PyMem_Malloc(n * sizeof(PyObject *));
    uint16_t *order = PyMem_Malloc(n * sizeof(uint16_t));
    if (keys == NULL || order == NULL) { /* it was only for speed */
        PyMem_Free(keys);
        PyMem_Free(order);
        return;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        keys[items[i].index] = Py_NewRef(items[i].key);
        order[items[i].index] = (uint16_t)i;
    }
    Sorted old = *place;
    *place = (Sorted){n, keys, order};
    for (Py_ssize_t i = 0; i < old.n; i++) Py_DECREF(old.keys[i]); /* `str` or `int` */
    PyMem_Free(old.keys);
    PyMem_Free(old.order);
}

/* Sorts what stands in `items` into `out`, which has room for as many: returns which of
the two is sorted. */
static Item *sort_items(Item *items, Item *out, Py_ssize_t n, size_t hash) {
    int (*compare)(const void *, const void *) =
        n && PyLong_CheckExact(items[0].key) ? compare_int : compare_str;
    Sorted *before = &sorted_before[hash % Py_ARRAY_LENGTH(sorted_before)];
    int keep = n > FEW_KEYS && n <= MANY_KEYS;
    if (keep && before->n == n) {
        Py_ssize_t i = 0;
        while (i < n && items[i].key == before->keys[i]) i++;
        if (i == n) {
            for (i = 0; i < n; i++) out[before->order[i]] = items[i];
            return out;
        }
    }
    Py_ssize_t i = 1;
    while (i < n && compare(&items[i - 1], &items[i]) <= 0) i++;
    if (i < n) qsort(items, n, sizeof(Item), compare);
    if (keep) remember_order(before, items, n);
    return items;
}

/* A node by its registered flatten function. */
static int walk_custom(Walk *w, Record *record, PyObject *x) {
    own_everything(w);
    PyObject *children, *aux;
    if (flatten_node(record, x, &children, &aux) < 0) return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(children);
    int failed = add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x));
    /* Before the children: arrays among them are visited at once or later, depending on
    their type, of which the trail must tell nothing. */
    if (failed == 0) failed = walk_static(w, aux, VISIT_STATIC);
    if (failed == 0) failed = visit_children(w, ((PyTupleObject *)children)->ob_item, n);
    Py_DECREF(children);
    Py_DECREF(aux);
    return failed;
}

/* A dictionary whose keys are neither all `str` nor all `int`: JAX's order may run the
user's code. */
static int walk_odd_dict(Walk *w, Record *record, PyObject *x) {
    if (record != NULL) return walk_custom(w, record, x);
    own_everything(w);
    PyObject *keys = PyObject_CallOneArg(py_sort_keys, x);
    if (keys == NULL) return -1;
    Py_ssize_t n = PyList_GET_SIZE(keys);
    int failed = add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x));
    for (Py_ssize_t i = 0; i < n && failed == 0; i++)
        failed = walk_static(w, PyList_GET_ITEM(keys, i), VISIT_STATIC);
    for (Py_ssize_t i = n - 1; i >= 0 && failed == 0; i--) {
        PyObject *value = PyObject_GetItem(x, PyList_GET_ITEM(keys, i));
        failed = value == NULL ? -1 : push(w, value, VISIT_TREE);
        Py_XDECREF(value);
    }
    Py_DECREF(keys);
    return failed;
}

/* The items of a dictionary whose keys are all `str` or all `int`, in the order of `keys`
if that is a list: 1 if they are, 0 if not. */
static int read_items(PyObject *x, PyObject *keys, Item *items, Py_ssize_t n, size_t *hash) {
    Py_ssize_t i = 0, position = 0;
    PyTypeObject *type = NULL;
    for (; i < n && PyDict_Next(x, &position, &items[i].key, &items[i].value); i++) {
        if (i == 0) type = Py_TYPE(items[0].key);
        if (Py_TYPE(items[i].key) != type) return 0;
        items[i].index = i;
        *hash = *hash * 31 + ((size_t)items[i].key >> 4);
    }
    if (n && type != &PyUnicode_Type && type != &PyLong_Type) return 0;
    if (keys == NULL) return 1;
    if (PyList_GET_SIZE(keys) != n || PyDict_GET_SIZE(x) != n) return 0;
    for (i = 0; i < n; i++) {
        items[i].key = PyList_GET_ITEM(keys, i);
        if (Py_TYPE(items[i].key) != type) return 0;
        items[i].value = PyDict_GetItemWithError(x, items[i].key);
        if (items[i].value == NULL) return 0;
    }
    return 1;
}

/* A `dict`, or one that has a record: a `defaultdict`, an `OrderedDict`. */
static int walk_dict(Walk *w, Record *record, PyObject *x) {
    Item small[2 * SMALL_FIELDS], *items = small, *sorted;
    Py_ssize_t n = PyDict_GET_SIZE(x), i;
    size_t hash = (size_t)n;
    PyObject *factory = NULL, *keys = NULL;
    int failed = -1, kind = record == NULL ? NODE_DICT : record->node;
    if (kind == NODE_ORDERED_DICT) {
        /* Whose order is not that of the dictionary that it is, and which asks a key for
        its hash if `dict.__delitem__` took that key out. */
        own_everything(w);
        if ((keys = PySequence_List(x)) == NULL) return -1;
        if ((record = record_of(w, x)) == NULL) goto done;
        n = PyDict_GET_SIZE(x);
        hash = (size_t)n;
    }
    if (n > SMALL_FIELDS && (items = PyMem_Malloc(2 * n * sizeof(Item))) == NULL) {
        items = small;
        PyErr_NoMemory();
        goto done;
    }
    if (!read_items(x, keys, items, n, &hash)) {
        failed = walk_odd_dict(w, record, x);
        goto done;
    }
    sorted = keys != NULL ? items : sort_items(items, items + n, n, hash);
    if (add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x)) < 0) goto done;
    for (i = 0; i < n; i++)
        if (add_atom(w, sorted[i].key) < 0) goto done;
    for (i = n - 1; i >= 0; i--)
        if (push(w, sorted[i].value, VISIT_TREE) < 0) goto done;
    if (kind == NODE_DEFAULTDICT) {
        /* Last, since it may need Python; all else is on the stack already. */
        if ((factory = PyObject_GetAttr(x, s_default_factory)) == NULL) goto done;
        int added = add_atom(w, factory);
        if (added < 0) goto done;
        if (added == 0) {
            own_everything(w);
            if (push(w, factory, VISIT_STATIC) < 0) goto done;
        }
    }
    failed = 0;
done:
    Py_XDECREF(factory);
    Py_XDECREF(keys);
    if (items != small) PyMem_Free(items);
    return failed;
}

/* A Module or a dataclass: its dictionary is read directly, as Equinox does as well. */
static int walk_module(Walk *w, Record *record, PyObject *x) {
    PyObject *small[SMALL_FIELDS], **fields = small;
    Py_ssize_t n = PyTuple_GET_SIZE(record->names), n_dynamic = record->n_dynamic;
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    if (n > SMALL_FIELDS && (fields = PyMem_Malloc(n * sizeof(PyObject *))) == NULL) {
        Py_DECREF(dict);
        PyErr_NoMemory();
        return -1;
    }
    int failed = -1, regular = read_fields(record, dict, fields);
    Py_DECREF(dict); /* the instance has it */
    if (!regular) {
        /* Under construction, with fields missing, or a wrapper. What is flattened must
        not look like an instance whose static field has the same value. */
        failed = add_bits(w, T_FLATTENED, 0);
        if (failed == 0) failed = walk_custom(w, record, x);
    } else {
        failed = add_object(w, TAG(T_NODE, n_dynamic), (PyObject *)Py_TYPE(x));
        /* From the first static on that has parts, or needs Python, all comes later: what
        runs may change the dictionary. The trail is the same either way, since what can
        be written at once depends on which types have been met before. */
        Py_ssize_t later = n_dynamic;
        for (; later < n && failed == 0; later++) {
            int added = add_atom(w, fields[later]);
            failed = added < 0 ? -1 : 0;
            if (!added) break;
        }
        if (failed == 0 && later == n) {
            failed = visit_children(w, fields, n_dynamic);
        } else {
            for (Py_ssize_t i = n_dynamic - 1; i >= 0 && failed == 0; i--)
                failed = push(w, fields[i], VISIT_TREE);
            for (Py_ssize_t i = n - 1; i >= later && failed == 0; i--)
                failed = push(w, fields[i], VISIT_STATIC);
        }
    }
    if (fields != small) PyMem_Free(fields);
    return failed;
}

static int walk_node(Walk *w, PyObject *x) {
    PyTypeObject *type = Py_TYPE(x);
    if (type == array_type) return add_array(w, x);
    if (x == Py_None) return add_object(w, TAG(T_NODE, 0), (PyObject *)type);
    if (type == &PyTuple_Type || type == &PyList_Type) {
        Py_ssize_t n = Py_SIZE(x);
        if (add_object(w, TAG(T_NODE, n), (PyObject *)type) < 0) return -1;
        return visit_children(w, PySequence_Fast_ITEMS(x), n);
    }
    if (type == &PyDict_Type) return walk_dict(w, NULL, x);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
        type == &PyBool_Type || type == &PyFunction_Type)
        return walk_static(w, x, VISIT_HASHABLE);
    Record *record = record_of(w, x);
    if (record == NULL) return -1;
    switch (record->node) {
    case NODE_TRACER:
        w->tracer = 1;
        return add_array(w, x);
    case NODE_OTHER_ARRAY:
    case NODE_ARRAY:
        return add_array(w, x);
    case NODE_NUMPY:
        w->numpy = 1;
        return add_array(w, x);
    case NODE_NAMEDTUPLE:
        if (add_object(w, TAG(T_NODE, Py_SIZE(x)), (PyObject *)type) < 0) return -1;
        return visit_children(w, ((PyTupleObject *)x)->ob_item, Py_SIZE(x));
    case NODE_MODULE:
    case NODE_DATACLASS:
        return walk_module(w, record, x);
    case NODE_DEFAULTDICT:
    case NODE_ORDERED_DICT:
        return walk_dict(w, record, x);
    case NODE_CUSTOM:
        return walk_custom(w, record, x);
    default:
        return walk_static(w, x, VISIT_HASHABLE);
    }
}

static int walk_tree(Walk *w, PyObject *root) {
    size_t base = w->n_pending;
    if (push(w, root, VISIT_TREE) < 0) return -1;
    while (w->n_pending > base) {
        uintptr_t next = w->pending[--w->n_pending];
        PyObject *x = w->current_tree = POINTER(next);
        int visit = VISIT(next);
        int failed = visit == VISIT_TREE ? walk_node(w, x) : walk_static(w, x, visit);
        if (w->n_trail > w->limit && failed == 0) {
            /* It may contain itself. */
            own_everything(w);
            w->limit = SIZE_MAX;
            PyObject *checked = PyObject_CallOneArg(py_check_ends, root);
            failed = checked == NULL ? -1 : 0;
            Py_XDECREF(checked);
        }
        w->current_tree = NULL;
        if (w->owning) Py_DECREF(x);
        if (failed < 0) return -1;
    }
    return 0;
}

/* --- comparing trails --------------------------------------------------------------- */

#define ODD UINT64_C(0x9E3779B97F4A7C15)

/* One multiplication waits for the last one; that of the tag does not. */
static inline uint64_t mix(uint64_t hash, uint64_t tag, uint64_t x) {
    hash = (hash ^ x ^ (tag * ODD)) * ODD;
    return hash ^ (hash >> 29);
}

static uint64_t hash_trail(const Walk *w) {
    uint64_t hash = w->n_trail;
    for (size_t i = 0; i < w->n_trail; i++) {
        const Entry *entry = &w->trail[i];
        uint64_t x = entry->as.bits;
        switch (KIND_OF(entry->tag)) {
        case T_STR:
        case T_BYTES:
        case T_BIGINT:
            x = (uint64_t)PyObject_Hash(entry->as.object); /* of these exact types */
            break;
        case T_PURE:
        case T_OPAQUE:
        case T_KEY:
            x = 0; /* the tag has the bits of the hash */
        }
        hash = mix(hash, entry->tag, x);
    }
    return hash;
}

/* Whether two entries are the same: 1 or 0, -1 for an error. May run the user's `==`; a
walk that has met something like that owns what it holds. */
static int same_entry(const Entry *a, const Entry *b) {
    if (a->tag != b->tag) return 0;
    if (a->as.bits == b->as.bits) return 1;
    PyObject *x = a->as.object, *y = b->as.object;
    switch (KIND_OF(a->tag)) {
    case T_STR:
        return PyUnicode_Compare(x, y) == 0;
    case T_BYTES:
    case T_BIGINT:
        return PyObject_RichCompareBool(x, y, Py_EQ);
    case T_PURE:
    case T_OPAQUE:
    case T_KEY:
        return Py_TYPE(x) == Py_TYPE(y) ? PyObject_RichCompareBool(x, y, Py_EQ) : 0;
    default:
        return 0;
    }
}

static int same_trail(const Entry *a, size_t n_a, const Entry *b, size_t n_b) {
    int same = n_a == n_b;
    for (size_t i = 0; i < n_a && same > 0; i++) same = same_entry(&a[i], &b[i]);
    return same;
}

/* --- specializations, and a table of them ------------------------------------------- */

typedef struct Spec {
    PyObject_HEAD
    PyObject *jitted, *flat, *plans;
    Entry *trail; /* owned */
    size_t n_trail;
    uint64_t hash;
    /* Mutable statics that it was traced with, and their number among those of a call:
    what was traced may refer to these very objects. (Here, `start` is that number.) */
    Mutable *witnesses;
    size_t n_witnesses;
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
} Table;

static int spec_traverse(Spec *self, visitproc visit, void *arg) {
    Py_VISIT(self->jitted);
    Py_VISIT(self->flat);
    Py_VISIT(self->plans);
    for (size_t i = 0; i < self->n_trail; i++)
        if (HOLDS(self->trail[i])) Py_VISIT(self->trail[i].as.object);
    for (size_t i = 0; i < self->n_witnesses; i++) Py_VISIT(self->witnesses[i].object);
    return 0;
}

static int spec_clear(Spec *self) {
    size_t n = self->n_trail, n_witnesses = self->n_witnesses;
    self->n_trail = self->n_witnesses = 0;
    Py_CLEAR(self->jitted);
    Py_CLEAR(self->flat);
    Py_CLEAR(self->plans);
    for (size_t i = 0; i < n; i++)
        if (HOLDS(self->trail[i])) Py_DECREF(self->trail[i].as.object);
    for (size_t i = 0; i < n_witnesses; i++) Py_DECREF(self->witnesses[i].object);
    return 0;
}

static void spec_dealloc(Spec *self) {
    PyObject_GC_UnTrack(self);
    spec_clear(self);
    PyMem_Free(self->trail);
    PyMem_Free(self->witnesses);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int spec_init(Spec *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"jitted", "flat", NULL};
    PyObject *jitted, *flat;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO", names, &jitted, &flat)) return -1;
    if (self->plans != NULL) { /* it may be in the middle of a call */
        PyErr_SetString(PyExc_RuntimeError, "a specialization is made once");
        return -1;
    }
    if ((self->plans = PyDict_New()) == NULL) return -1;
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
    .tp_clear = (inquiry)spec_clear,
    .tp_members = spec_members,
};

/* Takes a specialization out of its table; the caller gets the table's reference. */
static void table_unlink(Table *self, Spec *spec) {
    Spec **link = &self->buckets[spec->hash & self->mask];
    while (*link != spec) link = &(*link)->next;
    *link = spec->next;
    *(spec->older ? &spec->older->newer : &self->oldest) = spec->newer;
    *(spec->newer ? &spec->newer->older : &self->newest) = spec->older;
    spec->table = NULL;
    spec->next = spec->older = spec->newer = NULL;
    self->count--;
}

/* Forgets the oldest, down to some number. What dies may run anything. */
static void table_shrink(Table *self, Py_ssize_t count) {
    while (self->count > count) {
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
    Mutable *witnesses = PyMem_Malloc((w->n_mutables + 1) * sizeof(Mutable));
    if (trail == NULL || witnesses == NULL) {
        PyMem_Free(trail);
        PyMem_Free(witnesses);
        PyErr_NoMemory();
        return -1;
    }
    memcpy(trail, w->trail, w->n_trail * sizeof(Entry));
    for (size_t i = 0; i < w->n_trail; i++)
        if (HOLDS(trail[i])) Py_INCREF(trail[i].as.object);
    for (size_t i = 0; i < w->n_mutables; i++)
        witnesses[i] = (Mutable){Py_NewRef(w->mutables[i].object), i, 0};
    spec->trail = trail;
    spec->n_trail = w->n_trail;
    spec->witnesses = witnesses;
    spec->n_witnesses = w->n_mutables;
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

/* The specialization for a walk, a new reference; NULL if there is none, or an error. */
static Spec *table_find(Table *self, Walk *w, uint64_t hash) {
    if (self->buckets == NULL) return NULL;
    Spec *spec = self->buckets[hash & self->mask];
    while (spec != NULL) {
        /* Without `jitted` it is garbage that is being cleared, and a weak reference's
        callback still calls the function. */
        if (spec->hash == hash && spec->jitted != NULL) {
            Py_INCREF(spec);
            int same = same_trail(w->trail, w->n_trail, spec->trail, spec->n_trail);
            if (same > 0) return spec;
            /* After somebody's `==` the table may be another. */
            Spec *next = spec->next;
            int gone = spec->table != self;
            Py_DECREF(spec); /* which, if it is gone, may run anything */
            if (same < 0) return NULL;
            spec = gone ? self->buckets[hash & self->mask] : next;
        } else {
            spec = spec->next;
        }
    }
    return NULL;
}

/* Whether a static that it was traced with has been changed since: 1, 0 or -1. */
static int is_stale(Spec *spec, Walk *w) {
    for (size_t i = 0; i < spec->n_witnesses; i++) {
        size_t number = spec->witnesses[i].start;
        PyObject *x = spec->witnesses[i].object;
        if (number >= w->n_mutables || w->mutables[number].object == x) continue;
        own_everything(w);
        size_t start = w->mutables[number].start, stop = w->mutables[number].stop;
        Walk now;
        walk_init(&now);
        int same = 0;
        Py_INCREF(x);
        if (walk_static(&now, x, VISIT_STATIC) == 0)
            same = same_trail(now.trail, now.n_trail, spec->trail + start, stop - start);
        else if (!PyErr_ExceptionMatches(PyExc_Exception))
            same = -1;
        else
            PyErr_Clear();
        Py_DECREF(x);
        walk_free(&now);
        if (same <= 0) return same < 0 ? -1 : 1;
    }
    return 0;
}

/* A specialization was traced with the statics of this call. */
static int add_witnesses(Spec *spec, Walk *w) {
    for (size_t i = 0; i < w->n_mutables; i++) {
        size_t j = 0;
        while (j < spec->n_witnesses && (spec->witnesses[j].start != i ||
                                         spec->witnesses[j].object != w->mutables[i].object))
            j++;
        if (j < spec->n_witnesses) continue;
        Mutable *more =
            PyMem_Realloc(spec->witnesses, (spec->n_witnesses + 1) * sizeof(Mutable));
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        spec->witnesses = more;
        more[spec->n_witnesses++] = (Mutable){Py_NewRef(w->mutables[i].object), i, 0};
    }
    return 0;
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
    if (Py_TYPE(x) == &SpecType && ((Spec *)x)->table == self) {
        table_unlink(self, (Spec *)x);
        Py_DECREF(x);
    }
    Py_RETURN_NONE;
}

static Py_ssize_t table_length(Table *self) { return self->count; }

static PyObject *table_get(Table *self, PyObject *args);

static PyMethodDef table_methods[] = {
    {"get", (PyCFunction)table_get, METH_VARARGS, "The specialization for bound values."},
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

The numbers are those of `Op` in `_partition.py`. */

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
    PyObject *fields, *names;     /* of `OP_MODULE`, borrowed from `data` */
} Step;

typedef struct {
    PyObject_HEAD
    struct Handle *handle; /* borrowed; each forgets the other when it dies */
    Step *steps;           /* NULL: Python builds the result */
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

static int plan_clear(Plan *self) {
    Py_ssize_t n = self->n_steps;
    self->n_steps = 0;
    /* Results are not built from here any more, should a finalizer ask for one. */
    if (self->handle != NULL) self->handle->plan = NULL;
    self->handle = NULL;
    for (Py_ssize_t i = 0; i < n; i++) Py_CLEAR(self->steps[i].data);
    return 0;
}

static void plan_dealloc(Plan *self) {
    PyObject_GC_UnTrack(self);
    plan_clear(self);
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
    .tp_clear = (inquiry)plan_clear,
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
        if (op == OP_MODULE) {
            PyObject *cls;
            if (!PyArg_ParseTuple(step->data, "O!O!O!", &PyType_Type, &cls, &PyDict_Type,
                                  &step->fields, &PyTuple_Type, &step->names))
                return -1;
        }
        if (op == OP_ARRAY) self->n_arrays++;
        depth += op == OP_ARRAY || op == OP_CONSTANT ? 1 : 1 - step->n;
        if (depth > self->depth) self->depth = depth;
        if (depth < 1 || step->n < 0 || op < OP_ARRAY || op > OP_PLAIN_NAMEDTUPLE) goto bad;
        Py_ssize_t expected = op == OP_DICT     ? PyTuple_Size(step->data)
                              : op == OP_MODULE ? PyTuple_GET_SIZE(step->names)
                                                : step->n;
        if (expected != step->n) goto bad;
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
    int failed = steps == Py_None ? 0 : plan_read(plan, steps);
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

/* Without an address: it may be in the text of a program. */
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
    .tp_doc = "Carries out of a trace which result it gave: `_partition.ResultHandle`.",
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

/* A Module, by `object.__new__` and a dictionary; takes the children off the stack. */
static PyObject *build_module(const Step *step, PyObject **children) {
    PyTypeObject *type = (PyTypeObject *)PyTuple_GET_ITEM(step->data, 0);
    PyObject *fields = PyDict_Copy(step->fields), *module = NULL;
    if (fields == NULL) return NULL;
    for (Py_ssize_t i = 0; i < step->n; i++)
        if (PyDict_SetItem(fields, PyTuple_GET_ITEM(step->names, i), children[i]) < 0)
            goto done;
    module = type->tp_alloc(type, 0);
    /* Not `PyObject_GenericSetDict`: on Python 3.13 attributes then look uninitialised. */
    if (module != NULL && Py_TYPE(module_dict)->tp_descr_set(module_dict, module, fields) < 0)
        Py_CLEAR(module);
done:
    Py_DECREF(fields);
    return module;
}

static PyObject *build_node(const Step *step, PyObject **children) {
    Py_ssize_t n = step->n;
    PyObject *out;
    switch (step->op) {
    case OP_TUPLE:
    case OP_CALL:
        out = tuple_of(children, n);
        if (out != NULL && step->op == OP_CALL)
            Py_SETREF(out, PyObject_CallOneArg(step->data, out));
        return out;
    case OP_LIST:
        return list_of(children, n);
    case OP_DICT:
        out = PyDict_New();
        for (Py_ssize_t i = 0; out != NULL && i < n; i++)
            if (PyDict_SetItem(out, PyTuple_GET_ITEM(step->data, i), children[i]) < 0)
                Py_CLEAR(out);
        return out;
    case OP_MODULE:
        return build_module(step, children);
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

/* The result, from the arrays that came back. */
static PyObject *plan_build(Plan *self, PyObject *const *arrays) {
    PyObject *small[SMALL_STACK], **stack = small, *result = NULL;
    Py_ssize_t top = 0;
    if (self->depth > SMALL_STACK &&
        (stack = PyMem_Malloc(self->depth * sizeof(PyObject *))) == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < self->n_steps; i++) {
        const Step *step = &self->steps[i];
        if (step->op == OP_ARRAY) {
            stack[top++] = Py_NewRef(*arrays++);
        } else if (step->op == OP_CONSTANT) {
            stack[top++] = Py_NewRef(step->data);
        } else {
            PyObject *node = build_node(step, stack + top - step->n);
            if (node == NULL) goto done;
            for (Py_ssize_t j = 0; j < step->n; j++) Py_DECREF(stack[--top]);
            stack[top++] = node;
        }
    }
    result = stack[--top];
done:
    while (top > 0) Py_DECREF(stack[--top]);
    if (stack != small) PyMem_Free(stack);
    return result;
}

/* --- the calls that a thread is in the middle of ---------------------------------------- */

typedef struct Frame {
    struct Frame *outer;
    PyObject *function;   /* borrowed from whoever calls, like the values */
    Spec *spec;
    PyObject *const *values;
    Py_ssize_t n_values;
    PyObject *call; /* owned: the `Call`, once something asked for it */
} Frame;

static THREAD_LOCAL Frame *innermost;

static PyObject *call_of_frame(Frame *frame) {
    if (frame->call == NULL) {
        PyObject *values = tuple_of(frame->values, frame->n_values);
        if (values == NULL) return NULL;
        PyObject *call = PyObject_CallFunctionObjArgs(py_call_class, frame->function,
                                                      (PyObject *)frame->spec, values, NULL);
        Py_DECREF(values);
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
    if (innermost == NULL) Py_RETURN_NONE;
    return call_of_frame(innermost);
}

/* The innermost call of the specialization that traces a certain function. */
static PyObject *find_call(PyObject *self, PyObject *flat) {
    (void)self;
    for (Frame *frame = innermost; frame != NULL; frame = frame->outer) {
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

/* A context manager: a call that Python makes. */
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
    self->frame.outer = innermost;
    innermost = &self->frame;
    Py_RETURN_NONE;
}

static PyObject *calling_exit(Calling *self, PyObject *unused) {
    (void)unused;
    if (innermost != &self->frame) {
        PyErr_SetString(PyExc_RuntimeError, "calls must end in the order they began in");
        return NULL;
    }
    innermost = self->frame.outer;
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

/* Whether the default of a parameter is the one that is known. */
static int default_is_current(PyObject *const *with, Py_ssize_t i, PyObject *pair) {
    if (with[P_SOURCE] == Py_None) return 1;
    if (PyBytes_AS_STRING(with[P_KINDS])[i] != KEYWORD_ONLY) {
        PyObject *now = PyFunction_GET_DEFAULTS(with[P_SOURCE]);
        return (now == NULL ? Py_None : now) == with[P_POSITIONAL];
    }
    PyObject *now = PyFunction_GET_KW_DEFAULTS(with[P_SOURCE]);
    if (now == NULL) return 0;
    /* The keys of `__kwdefaults__` are `str`, as a rule. */
    now = PyDict_GetItemWithError(now, PyTuple_GET_ITEM(with[P_NAMES], i));
    if (now == NULL) PyErr_Clear();
    return now == PyTuple_GET_ITEM(pair, 1);
}

enum { BOUND, NOT_PLAIN, FAILED };

/* Binds a call: one value per parameter, each a new reference. What is not plainly right
is left to Python (`NOT_PLAIN`), which also has the error for it. */
static int bind(PyObject *const *with, PyObject *const *args, Py_ssize_t n_args,
                PyObject *kwnames, PyObject **values) {
    Py_ssize_t n = PyTuple_GET_SIZE(with[P_NAMES]), n_positional = 0, i;
    Py_ssize_t n_keywords = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames), n_used = 0;
    const char *kinds = PyBytes_AS_STRING(with[P_KINDS]);
    for (i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(with[P_NAMES], i), *value = NULL, *pair;
        switch (kinds[i]) {
        case VAR_POSITIONAL:
            value = PyTuple_New(n_args > n_positional ? n_args - n_positional : 0);
            if (value == NULL) return FAILED;
            for (Py_ssize_t j = 0; n_positional < n_args; j++)
                PyTuple_SET_ITEM(value, j, Py_NewRef(args[n_positional++]));
            values[i] = value;
            continue;
        case VAR_KEYWORD:
            if ((value = PyDict_New()) == NULL) return FAILED;
            values[i] = value;
            for (Py_ssize_t j = 0; j < n_keywords; j++) {
                PyObject *key = PyTuple_GET_ITEM(kwnames, j);
                int known = 0;
                for (Py_ssize_t k = 0; k < n && !known; k++) {
                    if (kinds[k] == POSITIONAL || kinds[k] == KEYWORD_ONLY)
                        known = PyUnicode_Compare(PyTuple_GET_ITEM(with[P_NAMES], k), key) == 0;
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
        if (kinds[i] != POSITIONAL_ONLY && n_keywords) {
            Py_ssize_t j = 0;
            while (j < n_keywords && PyTuple_GET_ITEM(kwnames, j) != name) j++;
            if (j == n_keywords)
                for (j = 0; j < n_keywords; j++)
                    if (PyUnicode_Compare(PyTuple_GET_ITEM(kwnames, j), name) == 0) break;
            if (j < n_keywords) {
                if (value != NULL) return NOT_PLAIN; /* given twice */
                value = args[n_args + j];
                n_used++;
            }
        }
        if (value == NULL) {
            pair = PyTuple_GET_ITEM(with[P_DEFAULTS], i);
            if (pair == Py_None || !default_is_current(with, i, pair)) return NOT_PLAIN;
            value = PyTuple_GET_ITEM(pair, 0);
        }
        values[i] = Py_NewRef(value);
    }
    return n_positional == n_args && n_used == n_keywords ? BOUND : NOT_PLAIN;
}

/* As `bind`, by Python. */
static int bind_in_python(Callable *self, PyObject *const *args, size_t nargsf,
                          PyObject *kwnames, PyObject **values, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) Py_CLEAR(values[i]);
    PyObject *renewed = PyObject_CallMethodNoArgs((PyObject *)self, s_renew_binding);
    if (renewed == NULL) return FAILED;
    Py_DECREF(renewed);
    PyObject *binder = Py_NewRef(PyTuple_GET_ITEM(self->prepared, P_BINDER));
    PyObject *bound = PyObject_Vectorcall(binder, args, nargsf, kwnames);
    Py_DECREF(binder);
    if (bound == NULL) return FAILED;
    int fits = PyTuple_GET_SIZE(bound) == n;
    if (!fits) /* another `__code__` */
        PyErr_SetString(PyExc_TypeError, "a jitted function has got other parameters");
    for (Py_ssize_t i = 0; fits && i < n; i++)
        values[i] = Py_NewRef(PyTuple_GET_ITEM(bound, i));
    Py_DECREF(bound);
    return fits ? BOUND : FAILED;
}

/* Has Python explain the exception that is set. */
static void translate(PyObject *function) {
    PyObject *type, *error, *traceback, *better = NULL;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    better = PyObject_CallMethodOneArg(function, s_translate, error);
    if (better == NULL || better == Py_None) {
        if (better == NULL) PyErr_Clear();
        Py_XDECREF(better);
        PyErr_Restore(type, error, traceback);
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

/* A compiled function has raised: Python decides what becomes of it. */
static void call_failed(PyObject *function, Frame *frame) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *call = call_of_frame(frame);
    PyObject *out = call == NULL ? NULL
                                 : PyObject_CallMethodObjArgs(function, s_failed, call,
                                                              error ? error : Py_None, NULL);
    if (out == NULL) PyErr_Clear();
    Py_XDECREF(out);
    Py_XDECREF(call);
    PyErr_Restore(type, error, traceback);
}

/* Blocks until a computation is done: the results of one are ready together. */
static int block(PyObject *const *arrays, Py_ssize_t n) {
    PyObject *out;
    if (n && Py_TYPE(arrays[0]) == array_type) {
        out = PyObject_CallMethodNoArgs(arrays[0], s_block_until_ready);
    } else {
        PyObject *list = list_of(arrays, n);
        if (list == NULL) return -1;
        out = PyObject_CallOneArg(py_block, list);
        Py_DECREF(list);
    }
    Py_XDECREF(out);
    return out == NULL ? -1 : 0;
}

/* Puts copies in the place of NumPy arrays if they are small (`copied` in Python). */
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
        /* One that was broadcast may have as many as there are numbers for. */
        if (more > copied_bytes - bytes) return 0;
        bytes += more;
    }
    for (size_t i = 1; i <= w->n_arrays; i++) {
        if (Py_TYPE(w->arrays[i]) != numpy_type) continue;
        PyObject *copy = PyObject_CallMethodNoArgs(w->arrays[i], s_copy);
        if (copy == NULL) return -1;
        Py_SETREF(w->arrays[i], copy);
    }
    w->numpy = 0;
    return 0;
}

/* Whether a call may read memory that NumPy can write to: 1, 0 or -1. */
static int reads_numpy(Walk *w) {
    if (w->numpy || !w->tracer) return w->numpy;
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
        /* Something was traced or compiled; unless eager, where nothing refers to the
        statics later. */
        if (!eager && add_witnesses(frame->spec, w) < 0) return NULL;
        PyObject *arrays = list_of(w->arrays + 1, w->n_arrays);
        PyObject *done = arrays == NULL ? NULL
                                        : PyObject_CallMethodObjArgs(function, s_finished,
                                                                     frame->call, arrays, NULL);
        Py_XDECREF(arrays);
        if (done == NULL) return NULL;
        Py_DECREF(done);
    }
    if (eager) return PyObject_GetAttr(frame->call, s_eager_result);
    Plan *plan = last != NULL && Py_TYPE(last) == &HandleType ? ((Handle *)last)->plan : NULL;
    if (plan == NULL || plan->n_arrays != n || plan->steps == NULL) {
        /* `out_shardings`, or a result that has to be flattened anew. */
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
        PyObject *inputs = list_of(w->arrays + 1, w->n_arrays);
        if (python != NULL && inputs != NULL)
            blocks = PyObject_CallMethodObjArgs(function, s_decide_blocks,
                                                (PyObject *)frame->spec, python, inputs, out,
                                                NULL);
        Py_XDECREF(python);
        Py_XDECREF(inputs);
        if (blocks == NULL) goto done;
        plan->blocks = blocks == Py_None ? -1 : blocks == Py_True;
        Py_DECREF(blocks);
    }
    int blocks_now = plan->blocks > 0 ? 1 : reads_numpy(w);
    if (blocks_now < 0 || (blocks_now && block(arrays, n) < 0)) goto done;
    result = plan_build(plan, arrays);
done:
    Py_DECREF(plan);
    return result;
}

/* A specialization that Python makes, or another thread made meanwhile. */
static Spec *specialize(PyObject *function, Table *table, Walk *w, uint64_t hash,
                        PyObject *const *values, Py_ssize_t n) {
    own_everything(w);
    PyObject *tuple = tuple_of(values, n), *made;
    if (tuple == NULL) return NULL;
    made = PyObject_CallMethodOneArg(function, s_miss, tuple);
    Py_DECREF(tuple);
    if (made == NULL) return NULL;
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

/* The specialization for a walk, found or made: a new reference. */
static Spec *look_up(PyObject *function, Table *table, Walk *w, PyObject *const *values,
                     Py_ssize_t n) {
    uint64_t hash = hash_trail(w);
    Spec *spec = table_find(table, w, hash);
    if (spec == NULL && PyErr_Occurred()) return NULL;
    if (spec != NULL && spec->n_witnesses) {
        int stale = is_stale(spec, w);
        if (stale && spec->table != NULL) {
            table_unlink(spec->table, spec);
            Py_DECREF(spec);
        }
        if (stale) Py_CLEAR(spec);
        if (stale < 0) return NULL;
    }
    return spec != NULL ? spec : specialize(function, table, w, hash, values, n);
}

/* A call that the walk makes nothing of: the reference says what is wrong with it, or
does better. */
static PyObject *call_in_python(PyObject *function, PyObject *const *values, Py_ssize_t n) {
    PyObject *tuple = tuple_of(values, n), *result = NULL;
    if (tuple == NULL) return NULL;
    result = PyObject_CallMethodOneArg(function, s_call, tuple);
    Py_DECREF(tuple);
    return result;
}

/* A call with bound arguments. */
static PyObject *call_bound(PyObject *function, Table *table, PyObject *const *values,
                            Py_ssize_t n) {
    Walk walk, *w = &walk;
    PyObject *result = NULL;
    Spec *spec = NULL;
    int failed = drop_records_if_grown();
    walk_init(w);
    w->limit += table->longest;
    for (Py_ssize_t i = 0; i < n && failed == 0; i++) failed = walk_tree(w, values[i]);
    if (failed < 0) {
        walk_free(w);
        /* Recursion by way of the user's code is not tried twice on each level: of a
        thousand levels, that would never end. */
        if (!PyErr_ExceptionMatches(PyExc_Exception) ||
            PyErr_ExceptionMatches(PyExc_RecursionError))
            return NULL;
        PyErr_Clear();
        result = call_in_python(function, values, n);
        if (result == NULL) translate(function);
        return result;
    }
    spec = look_up(function, table, w, values, n);
    if (spec == NULL) goto done;
    /* A trace may drop a mutable static, which is then to be remembered (`finish`). */
    if (w->n_mutables)
        own_everything(w);
    else
        walk_release(w);
    if (w->numpy && copy_numpy(w) < 0) goto done;
    Frame frame = {innermost, function, spec, values, n, NULL};
    innermost = &frame;
    PyObject *out = PyObject_Vectorcall(spec->jitted, w->arrays + 1,
                                        w->n_arrays | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    innermost = frame.outer;
    if (out == NULL) {
        call_failed(function, &frame);
    } else {
        result = finish(function, &frame, w, out);
        Py_DECREF(out);
    }
    Py_XDECREF(frame.call);
done:
    if (result == NULL) translate(function);
    Py_XDECREF(spec);
    walk_free(w);
    return result;
}

/* The specialization for a call that is not made: `table.get(function, values)`. */
static PyObject *table_get(Table *self, PyObject *args) {
    PyObject *function, *values;
    Walk w;
    Spec *spec = NULL;
    if (!PyArg_ParseTuple(args, "OO!", &function, &PyTuple_Type, &values)) return NULL;
    PyObject *const *items = ((PyTupleObject *)values)->ob_item;
    Py_ssize_t n = PyTuple_GET_SIZE(values);
    int failed = drop_records_if_grown();
    walk_init(&w);
    for (Py_ssize_t i = 0; i < n && failed == 0; i++) failed = walk_tree(&w, items[i]);
    if (failed == 0) spec = look_up(function, self, &w, items, n);
    walk_free(&w);
    return (PyObject *)spec;
}

#define SMALL_VALUES 12

static PyObject *callable_call(Callable *self, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames) {
    PyObject *small[SMALL_VALUES + 1] = {NULL}, **values = small, *result = NULL;
    if (self->python_call != NULL) {
        PyObject *call = Py_NewRef(self->python_call);
        result = PyObject_Vectorcall(call, args, nargsf, kwnames);
        Py_DECREF(call);
        return result;
    }
    if (self->prepared == NULL) {
        PyErr_SetString(PyExc_TypeError, "not a jitted function yet");
        return NULL;
    }
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
        if (positional == NULL || PyBytes_GET_SIZE(kinds) != PyTuple_GET_SIZE(names) ||
            PyTuple_GET_SIZE(defaults) != PyTuple_GET_SIZE(names) ||
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

/* Before Python 3.12 a class in Python does not inherit the vectorcall; 0.15 us a call. */
static PyObject *inherit_vectorcall(PyObject *self, PyObject *cls) {
    (void)self;
    if (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, &CallableType) ||
        ((PyTypeObject *)cls)->tp_call != PyVectorcall_Call) {
        PyErr_SetString(PyExc_TypeError, "expected a subclass of Callable");
        return NULL;
    }
    ((PyTypeObject *)cls)->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified((PyTypeObject *)cls);
    Py_RETURN_NONE;
}

static PyObject *setup(PyObject *self, PyObject *args, PyObject *kwargs) {
    (void)self;
    static char *names[] = {"registry", "function_types", "numpy_type", "classify",
                            "policy_of", "opaque_key", "array_key", "sort_keys",
                            "check_ends", "call_class", "block", "reads_numpy",
                            "eager_handle", "instance_dict", "copied_bytes", NULL};
    PyObject **places[] = {&registry,     &function_types, (PyObject **)&numpy_type,
                           &py_classify,  &py_policy_of,   &py_opaque_key,
                           &py_array_key, &py_sort_keys,   &py_check_ends,
                           &py_call_class, &py_block,      &py_reads_numpy,
                           &eager_handle, &module_dict};
    /* Not `Py_ARRAY_LENGTH`, which is no constant expression on Python 3.13. */
    PyObject *given[sizeof(places) / sizeof(*places)] = {NULL};
    Py_ssize_t copied = -1;
    /* What is kept here is of one interpreter. */
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "not in a subinterpreter");
        return NULL;
    }
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$O!O!O!OOOOOOOOOOOn", names, &PyDict_Type, &given[0],
            &PyTuple_Type, &given[1], &PyType_Type, &given[2], &given[3], &given[4],
            &given[5], &given[6], &given[7], &given[8], &given[9], &given[10],
            &given[11], &given[12], &given[13], &copied))
        return NULL;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(places); i++) {
        if (given[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "setup() needs %s", names[i]);
            return NULL;
        }
        Py_XSETREF(*places[i], Py_NewRef(given[i]));
    }
    if (copied < 0) {
        PyErr_SetString(PyExc_TypeError, "setup() needs copied_bytes");
        return NULL;
    }
    copied_bytes = copied;
    n_registered = -1;
    Py_RETURN_NONE;
}

/* What a walk costs, for `insight.breakdown`: the arrays of bound values. */
static PyObject *arrays_of(PyObject *self, PyObject *values) {
    (void)self;
    Walk w;
    if (!PyTuple_Check(values)) {
        PyErr_SetString(PyExc_TypeError, "expected a tuple of bound values");
        return NULL;
    }
    int failed = drop_records_if_grown();
    walk_init(&w);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values) && failed == 0; i++)
        failed = walk_tree(&w, PyTuple_GET_ITEM(values, i));
    PyObject *arrays = failed < 0 ? NULL : list_of(w.arrays + 1, w.n_arrays);
    walk_free(&w);
    return arrays;
}

static PyMethodDef functions[] = {
    {"arrays_of", arrays_of, METH_O, "The arrays of bound values, in JAX's order."},
    {"setup", (PyCFunction)(void (*)(void))setup, METH_VARARGS | METH_KEYWORDS,
     "Take what is left to Python."},
    {"inherit_vectorcall", inherit_vectorcall, METH_O, "Have a subclass called directly."},
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
        {&s_nbytes, "nbytes"}, {&s_copy, "copy"},
        {&s_default_factory, "default_factory"},
        {&s_build, "build"}, {&s_steps, "steps"}, {&s_native, "native"}};
    for (size_t i = 0; i < sizeof(strings) / sizeof(*strings); i++)
        if ((*strings[i].place = PyUnicode_InternFromString(strings[i].text)) == NULL)
            return NULL;
    if ((type_died_function = PyCFunction_New(&type_died_def, NULL)) == NULL) return NULL;
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
