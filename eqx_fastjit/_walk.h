/* The walk over a call: its arrays, and the trail of everything else.

It is `_partition.walk` and `_static_keys.append_static`, compiled. Included by
`_native.c` alone.

Two rules keep it right while user code runs in the middle (`flatten` functions,
`__hash__`, `__eq__`, finalizers), which may drop what is being walked:

- As long as no Python has run in a walk, references are borrowed from the arguments.
  `own_everything` comes before any Python, and the walk owns what it holds from then on.
- A `Record` of a type is not touched after Python has run: it may be gone. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* --- set by Python (`setup`) -------------------------------------------------------- */

static PyObject *registry;       /* JAX's dict of registered node types */
static Py_ssize_t n_registered;  /* its size when the type records were made */
static PyObject *py_classify, *py_policy_of, *py_opaque_key, *py_array_key, *py_sort_keys;
static PyObject *py_check_ends, *py_call_class, *py_block, *py_reads_numpy, *eager_handle;
static PyTypeObject *array_type; /* jaxlib's array, once one was seen */
static PyObject *array_class;    /* `jax.Array` */
static PyObject *top_level;      /* `top_level_trace` of `_compat.py` */
static PyObject *function_types; /* a tuple: JAX's types of functions, and `type` */
static PyTypeObject *numpy_type; /* `numpy.ndarray` */
static PyTypeObject *treedef_type;
static PyObject *wrapper_names;  /* a tuple: of attributes that wrappers have */
static PyObject *missing;        /* what Equinox writes in place of those */
static Py_ssize_t copied_bytes; /* the most of NumPy arrays that a call copies */

static PyObject *s_block_until_ready, *s_miss, *s_call, *s_finished, *s_failed;
static PyObject *s_translate, *s_result, *s_decide_blocks, *s_renew_binding, *s_flat;
static PyObject *s_specialization, *s_eager_result, *s_build, *s_steps, *s_native;
static PyObject *s_nbytes, *s_copy, *s_is_ready, *s_shape, *s_getstate, *s_default_factory;
static PyObject *s_tell_outer;

/* --- trails --------------------------------------------------------------------------

The numbers of `NodeKind` and `Kind` are those of the Python files. */

enum { NODE_STATIC, NODE_ARRAY, NODE_NUMPY, NODE_NONE, NODE_TUPLE, NODE_LIST, NODE_DICT,
       NODE_NAMEDTUPLE, NODE_MODULE, NODE_CUSTOM, NODE_STRUCT, NODE_OTHER_ARRAY,
       NODE_TRACER, NODE_DATACLASS, NODE_DEFAULTDICT, NODE_ORDERED_DICT, NODE_STATE };
enum { KIND_IDENTITY, KIND_INT, KIND_FLOAT, KIND_COMPLEX, KIND_STR, KIND_BYTES, KIND_PURE,
       KIND_OPAQUE, KIND_TUPLE, KIND_LIST, KIND_DICT, KIND_FIELDS, KIND_PARTS, KIND_KEY,
       KIND_NODE, KIND_METHOD, KIND_ATTRIBUTES, KIND_SCALAR };
enum { HASHABLE_YES, HASHABLE_NO, HASHABLE_AS_PARTS, HASHABLE_ASK };

/* Kinds of entries of a trail. Those from `T_NODE` on hold an object. */
enum { T_ARRAYS, T_INT, T_FLOAT, T_AGAIN, T_READING,
       T_NODE, T_STATIC, T_IDENTITY, T_STR, T_BYTES, T_BIGINT, T_PURE, T_OPAQUE, T_KEY,
       T_UNREAD };

typedef struct {
    uint64_t tag; /* one of the above; from bit 8 on a count or the bits of a hash */
    union { PyObject *object; int64_t integer; double real; uint64_t bits; } as;
} Entry;

#define ODD UINT64_C(0x9E3779B97F4A7C15)
#define KIND_OF(tag) ((int)((tag) & 0xff))
#define TAG(kind, payload) ((uint64_t)(kind) | ((uint64_t)(payload) << 8))
/* Mixed, as there is no room for the highest bits: those of 0.5 and 0.25 are all that
differs between their hashes. */
#define HASH_TAG(kind, hash) TAG(kind, (uint64_t)(hash) * ODD >> 8)
#define HOLDS(entry) (KIND_OF((entry).tag) >= T_NODE)

/* Where a static that can be changed in place begins and ends on the trail. */
typedef struct { PyObject *object; size_t start, stop; } Mutable;

/* Kinds of values on the stack of values to visit, in the low bits of pointers. */
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
#define SMALL_SEEN 128
#define LONG_TRAIL 10000

/* Something that was read, and what says whether it is as it was. */
typedef struct {
    PyObject *object;   /* borrowed: a part before it holds it */
    PyTypeObject *type; /* borrowed: its version is never another's */
    unsigned int type_version; /* 0 if the type cannot change */
    int by;
    uint64_t version; /* `BY_ATTRIBUTES`, `BY_KEYS` */
    Py_ssize_t items, n; /* `BY_ITEMS`: `n` of `Known.items`, from there on */
} Part;

/* A tree that several calls in a row were given at the same place: the parts on which it
depends what is read, and what was read. The objects are borrowed, those on the trail from the
trail of the specialization. */
typedef struct {
    PyObject *root;
    uint64_t version;
    size_t start; /* on the trail */
    int n_calls, n_learnt;
    Py_ssize_t n_registered;
    Part *parts;
    size_t n_parts, max_parts;
    PyObject **items;
    size_t n_items, max_items;
    PyObject **arrays;
    size_t n_arrays, n_statics;
    Mutable *mutables;
    size_t n_mutables;
    Entry *trail;
    size_t n_trail; /* 0: it is not known */
    char unread; /* as of a walk */
} Known;

/* A Module or dictionary of a call that is not within another, of the first few. */
#define FEW_TOPS 32
typedef struct { PyObject *object; uint64_t version; size_t start; int was_known; } Top;

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
    /* The trail of the specialization that was found last, which `last` holds. */
    PyObject *last;
    const Entry *last_trail;
    size_t n_last;
    size_t n_tops, n_known;
    const Known *known;
    size_t top_base; /* how many are pending once the one at hand is walked */
    size_t n_compounds; /* of the static at hand, that have parts with parts */
    /* The length of a trail at which Python has to say that the tree ends at all. */
    size_t limit;
    /* As it was when Python first ran. */
    size_t n_explained;
    /* The value that is being visited, which is no longer on the stack. */
    PyObject *current_tree, *current_static;
    /* `unread`: whether some of it was taken from the last trail. */
    char owning, nested, tracer, is_mutable, unread;
    char numpy; /* one of the below */
    Entry small_trail[SMALL_TRAIL];
    PyObject *small_arrays[SMALL_ARRAYS + 1];
    uintptr_t small_pending[SMALL_PENDING];
    Top tops[FEW_TOPS];
} Walk;

/* Whether NumPy's arrays are among those of a walk, and then whether they are copies. */
enum { NO_NUMPY, NUMPY_IN_PLACE, NUMPY_COPIED };

/* The walks of this thread that run Python, which may call a jitted function in turn: each
level takes some 10 kB of the stack, of which a thread may have 512 kB. */
#define MOST_NESTED 40
static THREAD_LOCAL int n_nested;

/* The calls of this thread that Python has raised for, after the walk failed. */
static THREAD_LOCAL size_t n_explained;

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
    if (w->max_seen > SMALL_SEEN) {
        /* Each of the statics to come would clear all of it: with one of 1,000 parts, 200
        layers took 900 us in place of 100. */
        PyMem_Free(w->seen);
        w->seen = NULL;
        w->max_seen = 0;
    } else if (w->seen != NULL) {
        memset(w->seen, 0, w->max_seen * sizeof(Seen));
    }
    w->n_seen = 0;
}

/* Looked up: from here on, Python's own limit will do. */
static inline void end_nested(Walk *w) {
    if (!w->nested) return;
    w->nested = 0;
    n_nested--;
}

/* Drops what a walk holds, except its arrays and the statics that can be changed. */
static void drop_trail(Walk *w) {
    if (w->n_seen) clear_seen(w);
    for (size_t i = 0; w->owning && i < w->n_trail; i++)
        if (HOLDS(w->trail[i])) Py_DECREF(w->trail[i].as.object);
    for (size_t i = 0; w->owning && i < w->n_pending; i++)
        Py_DECREF(POINTER(w->pending[i]));
    for (size_t i = 0; w->owning && i < w->n_tops; i++) Py_DECREF(w->tops[i].object);
    w->n_trail = w->n_pending = w->n_tops = 0;
}

/* Looked up: a trace may drop a mutable static, which is then to be remembered. */
static void keep_mutables(Walk *w) {
    drop_trail(w);
    for (size_t i = 0; !w->owning && i < w->n_mutables; i++)
        Py_INCREF(w->mutables[i].object);
    w->owning = 1;
}

static void walk_free(Walk *w) {
    end_nested(w);
    drop_trail(w);
    for (size_t i = 0; w->owning && i < w->n_mutables; i++)
        Py_DECREF(w->mutables[i].object);
    for (size_t i = 0; i < w->n_arrays; i++) Py_DECREF(w->arrays[i + 1]);
    GIVE_BACK(w, trail);
    GIVE_BACK(w, arrays);
    GIVE_BACK(w, pending);
    PyMem_Free(w->mutables);
    PyMem_Free(w->seen);
    Py_XDECREF(w->last);
}

/* From here on, Python may run: own references to all that the walk has seen. */
static void own_everything(Walk *w) {
    if (w->owning) return;
    w->owning = w->nested = 1;
    w->n_explained = n_explained;
    n_nested++;
    for (size_t i = 0; i < w->n_trail; i++)
        if (HOLDS(w->trail[i])) Py_INCREF(w->trail[i].as.object);
    for (size_t i = 0; i < w->n_pending; i++) Py_INCREF(POINTER(w->pending[i]));
    for (size_t i = 0; i < w->n_mutables; i++) Py_INCREF(w->mutables[i].object);
    for (size_t i = 0; i < w->n_tops; i++) Py_INCREF(w->tops[i].object);
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

/* --- what is known about types ------------------------------------------------------- */

/* The order in which a dictionary of fields has been found to have them, or some of them;
and how many are read. */
typedef struct { PyObject **keys; uint16_t *places; Py_ssize_t n, n_read; int lacks; } Layout;

typedef struct {
    PyTypeObject *type; /* borrowed: `reference` takes the record away with the type */
    PyObject *reference;
    unsigned int version; /* the type's, 0 if it cannot change */
    int node, kind, hashable, is_mutable;
    PyObject *data;  /* the function of `KIND_PARTS`, `KIND_KEY` */
    PyObject *flatten; /* of a node that C does not know */
    /* A tuple: of the dynamic, then of the static fields; and of what a wrapper has. */
    PyObject *names;
    Py_ssize_t n_dynamic, n_fields;
    Layout layouts[2];
    int next_layout;
} Record;

static Record **records;
static size_t n_records, records_mask;

#define SLOT_OF(type) ((size_t)((uintptr_t)(type) * ODD >> 32) & records_mask)

static void record_free(Record *record) {
    Py_XDECREF(record->reference);
    Py_XDECREF(record->data);
    Py_XDECREF(record->flatten);
    for (int i = 0; i < 2; i++) {
        if (record->layouts[i].keys != NULL)
            for (Py_ssize_t j = 0; j < record->layouts[i].n; j++)
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

/* A table of some size, with all records or with none. */
static int rebuild_records(size_t size, int keep) {
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
        if (old[i] != NULL && keep)
            place_record(old[i]);
        else if (old[i] != NULL)
            record_free(old[i]);
    PyMem_Free(old);
    return 0;
}

/* In constant time: that 16,000 classes died took 3 s. */
static void forget_record(PyTypeObject *type) {
    Record *record, *moved;
    while ((record = find_record(type)) != NULL) {
        size_t i = SLOT_OF(type);
        while (records[i] != record) i = (i + 1) & records_mask;
        records[i] = NULL;
        n_records--;
        /* Those behind may be there only because its place was taken. */
        while ((moved = records[i = (i + 1) & records_mask]) != NULL) {
            records[i] = NULL;
            n_records--;
            place_record(moved);
        }
        record_free(record);
    }
}

/* Called with the weak reference of a type that has died, for the address of the type. */
static PyObject *type_died(PyObject *address, PyObject *reference) {
    (void)reference;
    forget_record(PyLong_AsVoidPtr(address));
    Py_RETURN_NONE;
}

static PyMethodDef type_died_def = {"type_died", type_died, METH_O, NULL};

/* Takes the record of a type away when the type dies. */
static PyObject *refer_to(PyTypeObject *type) {
    PyObject *address = PyLong_FromVoidPtr(type), *callback = NULL, *reference = NULL;
    if (address != NULL) callback = PyCFunction_New(&type_died_def, address);
    if (callback != NULL) reference = PyWeakref_NewRef((PyObject *)type, callback);
    Py_XDECREF(address);
    Py_XDECREF(callback);
    return reference;
}

static int as_int(PyObject *x, Py_ssize_t i) {
    PyObject *item = PyTuple_GetItem(x, i);
    return item == NULL ? -1 : (int)PyLong_AsLong(item);
}

/* Whether `x` has the layout by which values of that kind are read, whatever a metaclass
says of its class. */
static int has_layout(const Record *record, PyObject *x) {
    int is_tuple = record->kind == KIND_TUPLE || record->node == NODE_NAMEDTUPLE;
    return (!is_tuple || PyTuple_Check(x)) &&
           (record->kind != KIND_LIST || PyList_Check(x)) &&
           (record->kind != KIND_DICT || PyDict_Check(x));
}

static inline int is_function_type(const PyTypeObject *type) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(function_types); i++)
        if (PyTuple_GET_ITEM(function_types, i) == (PyObject *)type) return 1;
    return 0;
}

/* Whether a class may be given another `__eq__`, say; its version then changes. JAX's functions
are compared by identity whatever it is, and JAX writes to their class each time it makes one:
Python 3.13 gives no more versions after 1,000. */
static inline int can_change(const PyTypeObject *type) {
    return (type->tp_flags & Py_TPFLAGS_HEAPTYPE) &&
           !(type->tp_flags & Py_TPFLAGS_IMMUTABLETYPE) && !is_function_type(type);
}

/* Asks Python about the type of `x`. The walk must own what it holds. */
static Record *ask_about(PyObject *x) {
    /* Owned, because the class of `x` may be changed while Python runs. */
    PyTypeObject *type = (PyTypeObject *)Py_NewRef((PyObject *)Py_TYPE(x));
    unsigned int version = type->tp_version_tag;
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
    if (!has_layout(record, x)) {
        PyErr_SetString(PyExc_TypeError, "an object is not what its class says");
        goto done;
    }
    record->flatten = Py_NewRef(PyTuple_GET_ITEM(node, 3));
    PyObject *data = PyTuple_GET_ITEM(policy, 1);
    if (record->node == NODE_MODULE || record->node == NODE_DATACLASS) {
        record->n_dynamic = PyTuple_GET_SIZE(PyTuple_GET_ITEM(node, 1));
        record->names =
            PySequence_Concat(PyTuple_GET_ITEM(node, 1), PyTuple_GET_ITEM(node, 2));
        if (record->names == NULL) goto done;
        record->n_fields = PyTuple_GET_SIZE(record->names);
        if (record->node == NODE_MODULE)
            Py_SETREF(record->names, PySequence_Concat(record->names, wrapper_names));
        if (record->names == NULL) goto done;
    } else if (record->node == NODE_STATE) {
        record->names = Py_NewRef(PyTuple_GET_ITEM(node, 1));
        record->n_fields = PyTuple_GET_SIZE(record->names);
    } else if (record->kind == KIND_FIELDS || record->kind == KIND_ATTRIBUTES) {
        record->names = Py_NewRef(data);
        record->n_dynamic = record->n_fields = PyTuple_GET_SIZE(data);
    }
    record->data = Py_NewRef(data);
    /* If the class was changed meanwhile, or had no version yet, it is asked about again. */
    if (can_change(type))
        record->version =
            version && version == type->tp_version_tag ? version : (unsigned int)-1;
    if ((record->reference = refer_to(type)) == NULL) goto done;
    forget_record(type); /* Python may have made one in between */
    if (records == NULL || 2 * (n_records + 1) > records_mask + 1) {
        size_t size = records ? 2 * (records_mask + 1) : 256;
        if (rebuild_records(size, 1) < 0) goto done;
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

/* Types may have become nodes after they were seen as statics. */
static int drop_records_if_grown(void) {
    if (registry == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "setup() has not been called");
        return -1;
    }
    if (PyDict_GET_SIZE(registry) == n_registered) return 0;
    Py_ssize_t n = PyDict_GET_SIZE(registry);
    if (records != NULL && rebuild_records(records_mask + 1, 0) < 0) return -1;
    n_registered = n; /* else the next call tries again */
    return 0;
}

/* --- fields ----------------------------------------------------------------------- */

/* Stands for an attribute that is not there: no attribute is this. */
static PyTypeObject SpecType;
#define ABSENT ((PyObject *)&SpecType)

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

/* Those attributes of a wrapper that Equinox says a Module does not have. */
static void drop_missing(PyObject **out, Py_ssize_t start, Py_ssize_t stop) {
    for (Py_ssize_t i = start; i < stop; i++)
        if (out[i] == missing) out[i] = ABSENT;
}

/* Reads the fields in one of the orders in which they were found before: returns how many,
or -1. */
static inline Py_ssize_t read_known(const Record *record, PyObject *dict, PyObject **out) {
    Py_ssize_t n = record->n_fields, n_names = PyTuple_GET_SIZE(record->names), position;
    PyObject *key, *value;
    for (int i = 0; i < 2; i++) {
        const Layout *layout = &record->layouts[i];
        if (layout->keys == NULL ||
            (layout->n != PyDict_GET_SIZE(dict) && record->node == NODE_MODULE))
            continue;
        for (Py_ssize_t k = layout->lacks ? 0 : n; k < n_names; k++) out[k] = ABSENT;
        Py_ssize_t j = 0;
        for (position = 0; PyDict_Next(dict, &position, &key, &value); j++) {
            if (key != layout->keys[j]) break;
            out[layout->places[j]] = value;
        }
        if (j != layout->n) continue;
        drop_missing(out, n, layout->n_read);
        return layout->n_read;
    }
    return -1;
}

/* Takes a new order, in place of the older of two. */
static void remember_layout(Record *record, Layout layout) {
    Layout *older = &record->layouts[record->next_layout], dropped = *older;
    for (Py_ssize_t j = 0; j < layout.n; j++) Py_INCREF(layout.keys[j]);
    record->next_layout ^= 1;
    *older = layout;
    for (Py_ssize_t j = 0; j < dropped.n; j++) Py_DECREF(dropped.keys[j]);
    PyMem_Free(dropped.keys);
    PyMem_Free(dropped.places);
}

/* Reads the fields of an instance, borrowed, in the order of `record->names`: returns how
many there are, -1 if they cannot be read. `out` has room for one more.

`eqx.module_update_wrapper` gives a Module further attributes, to Equinox static data: those
that are not there are `ABSENT`, as are fields that its own `__init__` has left to the
default of the class. All of `record->names` are read if there are any, and if there is
anything else, such as what a `functools.cached_property` keeps: Equinox does not read that,
but counts it, and of such a Module builds one with those attributes. (Versions that have
nothing to put in place of those do not.)

A dictionary is gone through in order and compared with the orders in which it was found
before: that is quicker than looking names up, and runs nobody's `__eq__`. */
static Py_ssize_t read_fields(Record *record, PyObject *dict, PyObject **out) {
    Py_ssize_t n = record->n_fields, n_names = PyTuple_GET_SIZE(record->names);
    Py_ssize_t size = PyDict_GET_SIZE(dict), position = 0;
    /* What else is in the dictionary of any other instance does not matter. */
    int is_module = record->node == NODE_MODULE;
    if (size < n && !is_module) return -1;
    Py_ssize_t found = read_known(record, dict, out), others = 0;
    if (found >= 0) return found;
    Layout learnt = {PyMem_Calloc(size + 1, sizeof(PyObject *)),
                     PyMem_Calloc(size + 1, sizeof(uint16_t)), 0, n, 0};
    if (learnt.keys == NULL || learnt.places == NULL || n_names >= UINT16_MAX) goto no;
    for (Py_ssize_t k = 0; k < n_names; k++) out[k] = ABSENT;
    PyObject *key, *value;
    for (found = 0; (found < n || is_module) && PyDict_Next(dict, &position, &key, &value);) {
        Py_ssize_t place = 0;
        if (!PyUnicode_CheckExact(key)) goto no;
        while (place < n_names && PyTuple_GET_ITEM(record->names, place) != key &&
               PyUnicode_Compare(PyTuple_GET_ITEM(record->names, place), key) != 0)
            place++;
        learnt.keys[learnt.n] = key;
        learnt.places[learnt.n++] = (uint16_t)place;
        out[place] = value;
        found += place < n;
        others += place == n_names;
    }
    learnt.lacks = found < n;
    int counts = !PyType_Check(missing), is_of_wrapper = learnt.n > found + others;
    if (learnt.lacks || is_of_wrapper || (others && counts)) learnt.n_read = n_names;
    drop_missing(out, n, learnt.n_read);
    /* Equinox only counts: others make up for a field that is not there. */
    if (learnt.lacks && (!is_module || (size == n && counts))) goto no;
    remember_layout(record, learnt);
    return learnt.n_read;
no:
    PyMem_Free(learnt.keys);
    PyMem_Free(learnt.places);
    return -1;
}

/* Writes how the fields of a Module were read, unless it has these alone. What a flatten
function gives, or a wrapper has, must not look like an instance whose static fields have the
same values. */
static int add_reading(Walk *w, const Record *record, Py_ssize_t n_read) {
    if (n_read == record->n_fields) return 0;
    return add_bits(w, T_READING, n_read > record->n_fields);
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
    int failed = hash == -1 || add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
                 add_object(w, HASH_TAG(T_KEY, hash), key) < 0;
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
    if (is_function_type(type)) return add_object(w, T_IDENTITY, x) < 0 ? -1 : 1;
    return 0;
}

/* Whether `==` of a member of a set, and of its parts, compares types as well. */
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

/* Whether all members of a set are plain; -1 for an error. */
static int has_plain_members(PyObject *x) {
    PyObject *member, *iterator;
    int plain = 1;
    WITHOUT_COLLECTOR(iterator = PyObject_GetIter(x));
    if (iterator == NULL) return -1;
    while (plain && (member = PyIter_Next(iterator)) != NULL) {
        plain = is_plain(member, 3);
        Py_DECREF(member);
    }
    Py_DECREF(iterator);
    return plain;
}

/* A set of such members, which is compared whole: 1 if it is one, 0 if not, -1 for an
error. */
static int add_plain_set(Walk *w, PyObject *x) {
    PyObject *kept;
    int plain = has_plain_members(x);
    if (plain <= 0) return plain;
    if (PyFrozenSet_CheckExact(x)) {
        kept = Py_NewRef(x);
    } else { /* which can be changed: keep a copy */
        own_everything(w);
        WITHOUT_COLLECTOR(kept = PyFrozenSet_New(x));
        if (kept == NULL) return -1;
        w->is_mutable = 1;
    }
    Py_hash_t hash = PyObject_Hash(kept);
    int failed = hash == -1 || add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
                 add_object(w, HASH_TAG(T_PURE, hash), kept) < 0;
    Py_DECREF(kept);
    return failed ? -1 : 1;
}

/* Removes what has been written since from the trail. */
static void truncate_trail(Walk *w, size_t n) {
    while (w->n_trail > n) {
        Entry *entry = &w->trail[--w->n_trail];
        if (w->owning && HOLDS(*entry)) Py_DECREF(entry->as.object);
    }
}

/* Parts of a static that are written each time they occur. To look the three of a nested
configuration up took 15 of the 150 ns that it costs. */
#define FEW_COMPOUNDS 16

/* What is compared part by part: its type and number of parts, and the parts. From the
first on that has parts itself they are to be visited, those before `n_children` as nodes.
After a few, each of those is written only once: linear for any graph. */
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
    if (++w->n_compounds > FEW_COMPOUNDS) {
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
    }
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
    /* A dictionary of atoms (a vocabulary), without a copy: 3 ms for 100,000 words. */
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

/* What Python's function gives for a value. */
static int add_parts_by_function(Walk *w, Record *record, PyObject *x, int visit,
                                 size_t start) {
    own_everything(w);
    PyObject *function = Py_NewRef(record->data);
    PyObject *parts = PyObject_CallOneArg(function, x);
    Py_DECREF(function);
    return add_parts_of_sequence(w, x, parts, visit, start);
}

/* Adds the node of a treedef to the parts: 1, or 0 if it is not as expected; -1 for an
error. */
static int read_treedef_node(PyObject *node, PyObject *parts, uint32_t *code) {
    if (!PyTuple_CheckExact(node) || PyTuple_GET_SIZE(node) < 4) return 0;
    PyObject *data = PyTuple_GET_ITEM(node, 2), *cls = PyTuple_GET_ITEM(node, 3);
    long kind = PyLong_AsLong(PyTuple_GET_ITEM(node, 0));
    long arity = PyLong_AsLong(PyTuple_GET_ITEM(node, 1));
    if (PyErr_Occurred()) return -1;
    if (kind < 0 || kind >= 1 << 3 || arity < 0 || arity >= 1 << 28) return 0;
    int has_data = data != Py_None || cls != Py_None;
    *code = (uint32_t)(arity << 4 | kind << 1 | has_data);
    if (!has_data) return 1;
    /* The keys of a dictionary, which has no class here, are in a new list. */
    int are_keys = cls == Py_None && PyList_CheckExact(data);
    if (are_keys)
        WITHOUT_COLLECTOR(data = PyList_AsTuple(data));
    else
        Py_INCREF(data);
    int failed = data == NULL || PyList_Append(parts, data) < 0 ||
                 PyList_Append(parts, cls) < 0;
    Py_XDECREF(data);
    return failed ? -1 : 1;
}

/* Treedefs of which no node has data, and what `read_treedef` gives: for those, and only
for them, JAX's hash and `==`, which do not run Python, compare all that there is. */
#define MANY_TREEDEFS 1024
static PyObject *plain_treedefs;

/* The kinds and arities of the nodes as `bytes`; the data of those that have any is added to
the parts. NULL without an error if JAX gives anything else. */
static PyObject *read_treedef(PyObject *x, PyObject *parts) {
    PyObject *state = PyObject_CallMethodNoArgs(x, s_getstate), *shape = NULL;
    if (state == NULL) return NULL;
    PyObject *nodes = PyTuple_CheckExact(state) && PyTuple_GET_SIZE(state) == 2
                          ? PyTuple_GET_ITEM(state, 1)
                          : NULL;
    if (nodes != NULL && PyList_CheckExact(nodes)) {
        Py_ssize_t n = PyList_GET_SIZE(nodes);
        shape = PyBytes_FromStringAndSize(NULL, n * sizeof(uint32_t));
        for (Py_ssize_t i = 0; shape != NULL && i < n; i++) {
            uint32_t code = 0;
            if (read_treedef_node(PyList_GET_ITEM(nodes, i), parts, &code) <= 0)
                Py_CLEAR(shape);
            else
                memcpy(PyBytes_AS_STRING(shape) + i * sizeof code, &code, sizeof code);
        }
    }
    Py_DECREF(state);
    return shape;
}

/* A treedef. Python takes 0.3 us for its parts and 0.15 a leaf; this 0.2 us if it has no data,
and else a third. */
static int add_treedef(Walk *w, PyObject *x, int visit, size_t start) {
    PyObject *shape = Py_XNewRef(PyDict_GetItemWithError(plain_treedefs, x));
    if (shape != NULL) {
        int failed = add_compound(w, x, &shape, 1, visit, start);
        Py_DECREF(shape);
        return failed;
    }
    PyObject *parts = PyErr_Occurred() ? NULL : PyList_New(0);
    if (parts == NULL || (shape = read_treedef(x, parts)) == NULL) {
        Py_XDECREF(parts);
        /* Found again: a finalizer may have run, and records been dropped. */
        Record *record = PyErr_Occurred() ? NULL : record_of(w, x);
        return record == NULL ? -1 : add_parts_by_function(w, record, x, visit, start);
    }
    int failed = PyList_Append(parts, shape) < 0;
    if (!failed && PyList_GET_SIZE(parts) == 1) {
        if (PyDict_GET_SIZE(plain_treedefs) == MANY_TREEDEFS) PyDict_Clear(plain_treedefs);
        failed = PyDict_SetItem(plain_treedefs, x, shape) < 0;
    }
    Py_DECREF(shape);
    if (failed) Py_CLEAR(parts);
    return add_parts_of_sequence(w, x, parts, visit, start);
}

/* Whether an instance of a subclass has attributes beside its contents; -1 for an error.
Python reads those. */
static int has_attributes(Record *record, PyObject *x) {
    if (record->data == Py_None || Py_TYPE(x)->tp_dictoffset == 0) return 0;
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    int found = PyDict_GET_SIZE(dict) > 0;
    Py_DECREF(dict);
    return found;
}

/* A subclass of `tuple`, `list` or `dict`, read by the base type's own means. */
static int add_container(Walk *w, Record *record, PyObject *x, int visit, size_t start) {
    int others = has_attributes(record, x);
    if (others < 0) return -1;
    if (others) return add_parts_by_function(w, record, x, visit, start);
    if (record->kind == KIND_DICT) return add_dict_parts(w, x, visit, start);
    return add_compound(w, x, PySequence_Fast_ITEMS(x), Py_SIZE(x), visit, start);
}

/* An instance of a subclass of `str`, `int` or `float`: its value. */
static int add_scalar(Walk *w, Record *record, PyObject *x, int visit, size_t start) {
    int others = has_attributes(record, x), overflow = 0;
    if (others < 0) return -1;
    PyObject *value = NULL;
    if (PyUnicode_Check(x)) {
        own_everything(w); /* nothing else holds the value */
        value = PyUnicode_FromObject(x);
    } else if (PyFloat_Check(x)) {
        value = PyFloat_FromDouble(PyFloat_AS_DOUBLE(x));
    } else {
        long long number = PyLong_AsLongLongAndOverflow(x, &overflow);
        if (!overflow) value = PyLong_FromLongLong(number);
    }
    if (value == NULL && PyErr_Occurred()) return -1;
    int failed = others || overflow ? add_parts_by_function(w, record, x, visit, start)
                                    : add_compound(w, x, &value, 1, visit, start);
    Py_XDECREF(value);
    return failed;
}

/* Attributes that are not in a dictionary, or may not be. */
static int add_attributes(Walk *w, Record *record, PyObject *x, int visit, size_t start) {
    Py_ssize_t n = PyTuple_GET_SIZE(record->data);
    PyObject *names = Py_NewRef(record->data);
    own_everything(w);
    PyObject *parts = PyList_New(0);
    for (Py_ssize_t i = 0; parts != NULL && i < n; i++) {
        PyObject *value = PyObject_GetAttr(x, PyTuple_GET_ITEM(names, i));
        if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
            PyErr_Clear();
            value = Py_NewRef(ABSENT);
        }
        if (value == NULL || PyList_Append(parts, value) < 0) Py_CLEAR(parts);
        Py_XDECREF(value);
    }
    Py_DECREF(names);
    return add_parts_of_sequence(w, x, parts, visit, start);
}

/* The attributes in the dictionary of an instance that are to be compared. */
static int add_fields(Walk *w, Record *record, PyObject *x, int visit, size_t start) {
    PyObject *small[SMALL_FIELDS + 1];
    Py_ssize_t n = PyTuple_GET_SIZE(record->data);
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    /* The fields of a node are others: also those that are not compared, and none that is
    no parameter. */
    int known = record->names == record->data && n <= SMALL_FIELDS;
    int regular = known && read_fields(record, dict, small) == n;
    Py_DECREF(dict); /* the instance has it */
    if (regular) return add_compound(w, x, small, n, visit, start);
    return add_attributes(w, record, x, visit, start);
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

/* A list as a tuple: `gc.get_objects()` shows either to the user's code, which can change a
list. Takes the reference. */
static PyObject *as_tuple(PyObject *list) {
    PyObject *tuple = list == NULL ? NULL : PySequence_Tuple(list);
    Py_XDECREF(list);
    return tuple;
}

/* A dictionary below a static that is a node: its values, then its keys. As they come: unlike
a dictionary that is traced, which JAX sorts, the function sees this one itself. */
static int add_dict_node(Walk *w, PyObject *x, PyObject *factory, size_t start) {
    Py_ssize_t n = PyDict_GET_SIZE(x), i = 0, position = 0;
    PyObject *key, *value, **parts = PyMem_Malloc((2 * n + 1) * sizeof(PyObject *));
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    while (i < n && PyDict_Next(x, &position, &key, &value)) {
        parts[i] = value;
        parts[n + i++] = key;
    }
    parts[2 * n] = factory;
    int failed = add_parts(w, x, T_NODE, parts, n, 2 * n + (factory != NULL), VISIT_STATIC,
                           start);
    PyMem_Free(parts);
    return failed;
}

/* A Module below a static, or a dataclass. */
static int add_module(Walk *w, Record *record, PyObject *x, size_t start) {
    PyObject *small[SMALL_FIELDS + 1], *dict = dict_of(x);
    if (dict == NULL) return -1;
    int few = PyTuple_GET_SIZE(record->names) <= SMALL_FIELDS;
    Py_ssize_t n = few ? read_fields(record, dict, small) : -1;
    Py_DECREF(dict); /* the instance has it */
    if (add_reading(w, record, n) < 0) return -1;
    if (n < 0) return add_flattened(w, record, x, start);
    return add_parts(w, x, T_NODE, small, record->n_dynamic, n, VISIT_STATIC, start);
}

/* A tree may contain itself. Of what is left to visit, since the user's code may have taken
that out of the whole; and later again, since it may have been put there. */
static int check_ends(Walk *w, size_t base, size_t *limit) {
    own_everything(w);
    *limit = 2 * w->n_trail;
    PyObject *left = PyList_New(0), *checked = NULL;
    for (size_t i = base; left != NULL && i < w->n_pending; i++)
        if (VISIT(w->pending[i]) == VISIT_TREE &&
            PyList_Append(left, POINTER(w->pending[i])) < 0)
            Py_CLEAR(left);
    if (left != NULL) checked = PyObject_CallOneArg(py_check_ends, left);
    Py_XDECREF(left);
    Py_XDECREF(checked);
    return checked == NULL ? -1 : 0;
}

static int add_other_static(Walk *w, PyObject *x, int visit, size_t start);

/* A Module that is a static, and what is below it: as `walk_node`, but for arrays. */
static int add_node(Walk *w, PyObject *x, size_t start) {
    PyTypeObject *type = Py_TYPE(x);
    int added = add_atom(w, x);
    if (added) return added < 0 ? -1 : 0;
    if (type == &PyTuple_Type || type == &PyList_Type)
        return add_parts(w, x, T_NODE, PySequence_Fast_ITEMS(x), Py_SIZE(x), Py_SIZE(x),
                         VISIT_STATIC, start);
    if (type == &PyDict_Type) return add_dict_node(w, x, NULL, start);
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
    case NODE_DEFAULTDICT: {
        PyObject *factory = PyObject_GetAttr(x, s_default_factory);
        int failed = factory == NULL ? -1 : add_dict_node(w, x, factory, start);
        Py_XDECREF(factory); /* the dictionary has it */
        return failed;
    }
    case NODE_CUSTOM:
    case NODE_STATE:
    case NODE_ORDERED_DICT:
        return add_flattened(w, record, x, start);
    default:
        return add_other_static(w, x, VISIT_STATIC, start);
    }
}

/* Whether a static leaf has a hash. (`Hashable` of the policy says how to tell.) */
static int check_hashable(Walk *w, PyObject *x, int hashable) {
    if (hashable == HASHABLE_ASK) {
        own_everything(w);
        if (PyObject_Hash(x) == -1) return -1;
    } else if (hashable == HASHABLE_NO) {
        PyErr_SetString(PyExc_TypeError, "a static leaf cannot be hashed");
        return -1;
    }
    return 0;
}

/* Whether calls within calls have failed for want of stack. If each of them tried something
else in turn, that would never end. */
static int is_endless(void) {
    return n_nested > 1 && PyErr_ExceptionMatches(PyExc_RecursionError);
}

/* Before a static that Python reads, and that may be one of which no part can be changed:
once the number of its entries is known (`end_unread`), it need not be read again if it
stands here on the last trail. A treedef takes 2 us. */
static int begin_unread(Walk *w, const Record *record, PyObject *x, size_t start) {
    if (w->n_trail != start || record->is_mutable) return 0;
    return add_object(w, T_UNREAD, x);
}

static void end_unread(Walk *w, size_t start) {
    if (KIND_OF(w->trail[start].tag) == T_UNREAD && !w->is_mutable)
        w->trail[start].tag = TAG(T_UNREAD, w->n_trail - start - 1);
}

/* Whether an entry with a type means what it did: its values are compared as before, and the
object that follows by its identity is one of them. (None of these types had values that can
be changed. One that has them now was given another `__eq__`.) */
static int is_current_type(const Entry *entry, const Entry *next) {
    PyTypeObject *type = (PyTypeObject *)entry->as.object;
    const Record *record = find_record(type);
    if (next != NULL && KIND_OF(next->tag) == T_IDENTITY && Py_TYPE(next->as.object) != type)
        return 0;
    return record != NULL ? is_current(record, type) && !record->is_mutable
                          : (type->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0;
}

/* The entry that stands here on the last trail, if it is of that kind and this object. */
static const Entry *last_entry(const Walk *w, int kind, const PyObject *x) {
    if (w->n_trail >= w->n_last) return NULL;
    const Entry *entry = &w->last_trail[w->n_trail];
    return KIND_OF(entry->tag) == kind && entry->as.object == x ? entry : NULL;
}

/* Writes a static as it stands on the last trail: 1 if it does so, 0 if not, -1 for an
error. */
static int add_unread(Walk *w, PyObject *x) {
    const Entry *last = last_entry(w, T_UNREAD, x);
    size_t n = last == NULL ? 0 : last->tag >> 8;
    if (n == 0) return 0;
    for (size_t i = 1; i <= n; i++)
        if (KIND_OF(last[i].tag) == T_STATIC &&
            !is_current_type(&last[i], i < n ? &last[i + 1] : NULL))
            return 0;
    for (size_t i = 0; i <= n; i++) {
        if (add_bits(w, last[i].tag, last[i].as.bits) < 0) return -1;
        if (w->owning && HOLDS(last[i])) Py_INCREF(last[i].as.object);
    }
    w->unread = 1;
    return 1;
}

/* What cannot be changed. If it stands here on the last trail, its hash is known: those of
JAX's and of paths are in Python, and take 85 to 250 ns. */
static int add_pure(Walk *w, PyObject *x) {
    const Entry *last = last_entry(w, T_PURE, x);
    if (last != NULL) {
        w->unread = 1;
        return add_object(w, last->tag, x);
    }
    own_everything(w);
    Py_hash_t hash = PyObject_Hash(x);
    return hash == -1 ? -1 : add_object(w, HASH_TAG(T_PURE, hash), x);
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
        /* With its class, if the class can change. */
        if (record->version && add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0) return -1;
        return add_object(w, T_IDENTITY, x);
    case KIND_TUPLE:
    case KIND_LIST:
    case KIND_DICT:
        return add_container(w, record, x, visit, start);
    case KIND_FIELDS:
        return add_fields(w, record, x, visit, start);
    case KIND_ATTRIBUTES:
        return add_attributes(w, record, x, visit, start);
    case KIND_NODE:
        if (record->node == NODE_MODULE) return add_module(w, record, x, start);
        return add_flattened(w, record, x, start); /* a jitted function */
    case KIND_METHOD:
        if (add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0 ||
            add_object(w, T_IDENTITY, PyMethod_GET_SELF(x)) < 0)
            return -1;
        return push(w, PyMethod_GET_FUNCTION(x), VISIT_STATIC);
    case KIND_PURE:
        return add_pure(w, x);
    case KIND_OPAQUE:
        own_everything(w);
        hash = PyObject_Hash(x);
        if (hash != -1)
            return add_object(w, T_STATIC, (PyObject *)Py_TYPE(x)) < 0
                       ? -1
                       : add_object(w, HASH_TAG(T_OPAQUE, hash), x);
        if (!PyErr_ExceptionMatches(PyExc_Exception) || is_endless()) return -1;
        PyErr_Clear();
        return add_key(w, x, PyObject_CallOneArg(py_opaque_key, x));
    case KIND_SCALAR:
        return add_scalar(w, record, x, visit, start);
    case KIND_PARTS:
        if (begin_unread(w, record, x, start) < 0) return -1;
        if (Py_TYPE(x) == treedef_type) {
            own_everything(w);
            return add_treedef(w, x, visit, start);
        }
        return add_parts_by_function(w, record, x, visit, start);
    case KIND_KEY:
        if (begin_unread(w, record, x, start) < 0) return -1;
        own_everything(w);
        function = Py_NewRef(record->data);
        PyObject *key = PyObject_CallOneArg(function, x);
        Py_DECREF(function);
        return add_key(w, x, key);
    }
    PyErr_SetString(PyExc_SystemError, "eqx_fastjit: unknown kind of static");
    return -1;
}

typedef struct { Py_hash_t hash; PyObject *object; } Member;

static int compare_members(const void *a, const void *b) {
    Py_hash_t x = ((const Member *)a)->hash, y = ((const Member *)b)->hash;
    return (x > y) - (x < y);
}

/* What the members of a set are sorted by: not for a NaN, whose hash is its address. */
static Py_hash_t order_of(Walk *w, PyObject *x) {
    PyTypeObject *type = Py_TYPE(x);
    if (type == &PyFloat_Type && isnan(PyFloat_AS_DOUBLE(x))) return 0;
    if (type != &PyUnicode_Type && type != &PyLong_Type && type != &PyFloat_Type &&
        type != &PyBytes_Type) {
        own_everything(w);
        Record *record = record_of(w, x);
        if (record == NULL) return -1;
        /* Members of an `Enum` have a hash in Python. */
        if (record->kind == KIND_IDENTITY) return (Py_hash_t)((uintptr_t)x >> 4);
    }
    return PyObject_Hash(x);
}

#define FEW_MEMBERS 8

/* Any set, part by part, in the order of the hashes: 1 if it is written, 0 if it has
members whose hash is the same or raises, and thus no order; -1 for an error. A fifth of
what a key made by Python costs. */
static int add_set(Walk *w, PyObject *x, size_t start) {
    Member small[SMALL_FIELDS], *members = small;
    PyObject *parts_small[SMALL_FIELDS], **parts = parts_small, *iterator;
    Py_ssize_t n = PySet_GET_SIZE(x), found = 0;
    int added = -1;
    if (n > SMALL_FIELDS) {
        members = PyMem_Malloc(n * sizeof(Member));
        parts = PyMem_Malloc(n * sizeof(PyObject *));
    }
    if (members == NULL || parts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    WITHOUT_COLLECTOR(iterator = PyObject_GetIter(x));
    if (iterator == NULL) goto done;
    while (found < n && (members[found].object = PyIter_Next(iterator)) != NULL) found++;
    Py_DECREF(iterator);
    if (PyErr_Occurred()) goto done;
    for (Py_ssize_t i = 0; i < found; i++) {
        members[i].hash = order_of(w, members[i].object);
        if (members[i].hash == -1 && PyErr_Occurred()) {
            added = !PyErr_ExceptionMatches(PyExc_Exception) || is_endless() ? -1 : 0;
            if (!added) PyErr_Clear();
            goto done;
        }
    }
    qsort(members, found, sizeof(Member), compare_members);
    added = 1;
    for (Py_ssize_t i = 0; added && i < found; i++) {
        added = i == 0 || members[i].hash != members[i - 1].hash;
        parts[i] = members[i].object;
    }
    if (added && PySet_CheckExact(x)) w->is_mutable = 1;
    if (added && add_compound(w, x, parts, found, VISIT_STATIC, start) < 0) added = -1;
done:
    for (Py_ssize_t i = 0; i < found; i++) Py_DECREF(members[i].object);
    if (parts != parts_small) PyMem_Free(parts);
    if (members != small) PyMem_Free(members);
    return added;
}

/* Writes one value of a static, which is no atom, on the trail; its parts are left to be
visited. */
static int add_other_static(Walk *w, PyObject *x, int visit, size_t start) {
    PyTypeObject *type = Py_TYPE(x);
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
    if (type == &PySlice_Type) { /* has a hash since Python 3.12 */
        if (visit == VISIT_HASHABLE && check_hashable(w, x, HASHABLE_ASK) < 0) return -1;
        PySliceObject *slice = (PySliceObject *)x;
        PyObject *parts[] = {slice->start, slice->stop, slice->step};
        return add_compound(w, x, parts, 3, VISIT_STATIC, start);
    }
    if (type == &PyFrozenSet_Type || (type == &PySet_Type && visit == VISIT_STATIC)) {
        /* Of a few members, the copy that a `set` needs takes longer than sorting them: 225
        ns for two, and 160. */
        int few = type == &PySet_Type && PySet_GET_SIZE(x) <= FEW_MEMBERS;
        int added = few ? add_set(w, x, start) : add_plain_set(w, x);
        if (!added) added = few ? add_plain_set(w, x) : add_set(w, x, start);
        if (added) return added < 0 ? -1 : 0;
    }
    return add_by_record(w, x, visit, start);
}

static inline int add_static(Walk *w, PyObject *x, int visit, size_t start) {
    int added = add_atom(w, x);
    return added ? (added < 0 ? -1 : 0) : add_other_static(w, x, visit, start);
}

/* A static leaf or field, whole. Iterative: statics may be nested to any depth. */
static int walk_static(Walk *w, PyObject *root, int visit) {
    /* A limit of its own: that this static ends says nothing about the tree around it. */
    size_t base = w->n_pending, start = w->n_trail, limit = start + w->limit;
    int added = add_atom(w, root);
    if (!added) added = add_unread(w, root);
    if (added) return added < 0 ? -1 : 0;
    w->is_mutable = 0;
    w->n_compounds = 0;
    /* The caller owns a reference to `root`. */
    if (add_other_static(w, root, visit, start) < 0) return -1;
    while (w->n_pending > base) {
        uintptr_t next = w->pending[--w->n_pending];
        PyObject *x = w->current_static = POINTER(next);
        int failed = VISIT(next) == VISIT_TREE ? add_node(w, x, start)
                                               : add_static(w, x, VISIT(next), start);
        if (failed == 0 && w->n_trail > limit) failed = check_ends(w, base, &limit);
        w->current_static = NULL;
        if (w->owning) Py_DECREF(x);
        if (failed < 0) return -1;
    }
    if (w->n_seen) clear_seen(w);
    end_unread(w, start);
    if (!w->is_mutable) return 0;
    if (w->n_mutables == w->max_mutables) GROW(w->mutables, w->max_mutables, 0, NULL);
    if (w->owning) Py_INCREF(root);
    w->mutables[w->n_mutables++] = (Mutable){root, start, w->n_trail};
    return 0;
}

/* --- what is as it was -----------------------------------------------------------------

Most programs but training steps pass one model in every call. Such a tree is not read again
where nothing in it has changed: 12 blocks of a GPT in 54 us a call, which took 65.

Each dictionary has a version (PEP 509) that no other ever has, and that each change of it
replaces. So one comparison is for all attributes of a Module: what its dictionary holds, it
has held since, and a tuple in it is the same tuple. A list is compared item by item. Of those
some may have died, and others come to their addresses: Modules and dictionaries of other
versions, or arrays, of which any will do. Statics that are not on a trail, as numbers, are
not taken from lists.

`x.field = y` may write to a dictionary, drop what was there, and only then give the new
version (`STORE_ATTR_WITH_HINT`, of a dictionary that does not share its keys). Python that runs
in between, as `__del__` and callbacks of weak references do, finds the old version. Instances
of which that may be so are always read. A dictionary that is passed may be the `__dict__` of
one, so its values are compared as well; and what has no references left is not as it was.

From Python 3.13 on an attribute may be set without a new version, so all is read there. */

#define HAS_VERSIONS (PY_VERSION_HEX < 0x030D0000)
/* Learning costs as much as reading twice: of a model that changes every 4 calls, as where
gradients are accumulated, it took a tenth of each call if it was learnt after 4. */
#define FEW_CALLS 16
#define FEW_TIMES 4
#define MANY_PARTS 10000
#define MANY_LEVELS 100

enum { BY_TYPE, BY_ATTRIBUTES, BY_KEYS, BY_ITEMS };

#if HAS_VERSIONS
#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#endif
static inline uint64_t version_of(PyObject *dict) {
    return ((PyDictObject *)dict)->ma_version_tag;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif
#else
static inline uint64_t version_of(PyObject *dict) { return (void)dict, 0; }
#endif

static void free_known(Known *known) {
    PyMem_Free(known->parts);
    PyMem_Free(known->items);
    PyMem_Free(known->arrays);
    PyMem_Free(known->mutables);
    PyMem_Free(known->trail);
}

static int has_values(PyObject *dict, PyObject *const *values) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &key, &value))
        if (value != *values++) return 0;
    return 1;
}

/* Whether the dictionary of an instance may get its new version late, as said above: by an
assignment to the instance, or to another that has the same one. `held`: the references of the
caller to it. */
static int is_late(const PyObject *x, const PyObject *dict, int held) {
    return ((const PyDictObject *)dict)->ma_values == NULL &&
           (Py_TYPE(x)->tp_setattro == PyObject_GenericSetAttr ||
            Py_REFCNT(dict) > 1 + held);
}

static int is_part_unchanged(const Known *known, const Part *part, const PyObject *root) {
    PyObject *x = part->object, *dict;
    if (Py_REFCNT(x) == 0 || Py_TYPE(x) != part->type ||
        (part->type_version && part->type_version != part->type->tp_version_tag))
        return 0;
    switch (part->by) {
    case BY_ATTRIBUTES:
        if ((dict = dict_of(x)) == NULL) {
            PyErr_Clear();
            return 0;
        }
        int same = version_of(dict) == part->version && !is_late(x, dict, 1 + (dict == root));
        Py_DECREF(dict); /* the instance has it */
        return same;
    case BY_KEYS:
        return version_of(x) == part->version && has_values(x, known->items + part->items);
    case BY_ITEMS:
        return Py_SIZE(x) == part->n &&
               (part->n == 0 || memcmp(PySequence_Fast_ITEMS(x), known->items + part->items,
                                       part->n * sizeof(PyObject *)) == 0);
    }
    return 1;
}

/* Takes down a tree that is not within another. Whether it is known, and as it was. */
static int is_known(Walk *w, PyObject *x, PyObject *dict) {
    if (!HAS_VERSIONS || w->n_pending >= w->top_base) return 0;
    w->top_base = w->n_pending;
    if (w->n_tops == FEW_TOPS) return 0;
    const Known *known = w->n_tops < w->n_known ? &w->known[w->n_tops] : NULL;
    Top *top = &w->tops[w->n_tops++];
    *top = (Top){x, version_of(dict), w->n_trail, 0};
    if (w->owning) Py_INCREF(x);
    if (known == NULL || known->n_trail == 0 || known->root != x ||
        known->version != top->version || known->start != w->n_trail ||
        known->n_registered != n_registered)
        return 0;
    for (size_t i = 0; i < known->n_parts; i++)
        if (!is_part_unchanged(known, &known->parts[i], dict)) return 0;
    for (size_t i = 0; i < known->n_arrays; i++)
        if (Py_TYPE(known->arrays[i]) != array_type || Py_REFCNT(known->arrays[i]) == 0)
            return 0;
    return top->was_known = 1;
}

/* Adds to a walk what reading that tree would. */
static int add_known(Walk *w) {
    const Known *known = &w->known[w->n_tops - 1];
    while (w->max_trail - w->n_trail < known->n_trail)
        GROW(w->trail, w->max_trail, 0, w->small_trail);
    while (w->max_arrays - w->n_arrays < known->n_arrays)
        GROW(w->arrays, w->max_arrays, 1, w->small_arrays);
    while (w->max_mutables - w->n_mutables < known->n_mutables)
        GROW(w->mutables, w->max_mutables, 0, NULL);
    for (size_t i = 0; i < known->n_mutables; i++) {
        Mutable x = known->mutables[i];
        if (w->owning) Py_INCREF(x.object);
        w->mutables[w->n_mutables++] =
            (Mutable){x.object, x.start + w->n_trail, x.stop + w->n_trail};
    }
    w->unread |= known->unread;
    memcpy(w->trail + w->n_trail, known->trail, known->n_trail * sizeof(Entry));
    w->n_trail += known->n_trail;
    for (size_t i = 0; w->owning && i < known->n_trail; i++)
        if (HOLDS(known->trail[i])) Py_INCREF(known->trail[i].as.object);
    for (size_t i = 0; i < known->n_arrays; i++)
        w->arrays[++w->n_arrays] = Py_NewRef(known->arrays[i]);
    return 0;
}

static int add_part(Known *known, PyObject *x, int by, uint64_t version) {
    PyTypeObject *type = Py_TYPE(x);
    unsigned int type_version = can_change(type) ? type->tp_version_tag : 0;
    if (known->n_parts == MANY_PARTS || (can_change(type) && type_version == 0) ||
        type->tp_finalize != NULL)
        return -1;
    if (known->n_parts == known->max_parts) GROW(known->parts, known->max_parts, 0, NULL);
    known->parts[known->n_parts++] =
        (Part){x, type, type_version, by, version, known->n_items, 0};
    return 0;
}

static int add_item(Known *known, PyObject *x) {
    if (known->n_items == known->max_items) GROW(known->items, known->max_items, 0, NULL);
    known->items[known->n_items++] = x;
    return 0;
}

/* The items of a list or tuple. */
static int learn_items(Known *known, PyObject *x) {
    if (add_part(known, x, BY_ITEMS, 0) < 0) return -1;
    Part *part = &known->parts[known->n_parts - 1];
    for (; part->n < Py_SIZE(x); part->n++)
        if (add_item(known, PySequence_Fast_ITEMS(x)[part->n]) < 0) return -1;
    return 0;
}

/* The values of a dictionary. */
static int learn_values(Known *known, PyObject *x) {
    PyObject *key, *value;
    Py_ssize_t position = 0;
    if (add_part(known, x, BY_KEYS, version_of(x)) < 0) return -1;
    while (PyDict_Next(x, &position, &key, &value))
        if (add_item(known, value) < 0) return -1;
    return 0;
}

/* The attributes of an instance, in the order of the record's names. */
static int learn_attributes(Known *known, Record *record, PyObject *x, PyObject **fields) {
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    int few = PyTuple_GET_SIZE(record->names) <= SMALL_FIELDS;
    int failed = !few || is_late(x, dict, 1) ||
                 read_fields(record, dict, fields) != record->n_fields ||
                 add_part(known, x, BY_ATTRIBUTES, version_of(dict)) < 0;
    Py_DECREF(dict); /* the instance has it */
    return failed ? -1 : 0;
}

/* The parts of a static. `held`: where the parts before it are as they were, it is this very
object. `whole`: it is not a part itself, and thus may not have been read (`T_UNREAD`). */
static int learn_static(Known *known, PyObject *x, int held, int whole, int depth) {
    PyTypeObject *type = Py_TYPE(x);
    PyObject *small[SMALL_FIELDS + 1], **parts = small, *key, *value;
    Py_ssize_t n = 0, position = 0;
    /* Tuples that share their parts may have 2^50 of them. */
    if (known->n_statics++ == MANY_PARTS) return -1;
    if (x == Py_None || type == &PyBool_Type || type == &PyFunction_Type ||
        type == &PyUnicode_Type)
        return 0;
    if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBytes_Type ||
        type == &PyComplex_Type)
        return held ? 0 : -1; /* the trail holds its value */
    if (type == &PyFrozenSet_Type) return has_plain_members(x) == 1 ? 0 : -1;
    if (depth-- == 0) return -1;
    if (type == &PyDict_Type) {
        if (learn_values(known, x) < 0) return -1;
        while (PyDict_Next(x, &position, &key, &value))
            if (learn_static(known, key, 1, 0, depth) < 0 ||
                learn_static(known, value, 1, 0, depth) < 0)
                return -1;
        return 0;
    }
    const Record *record = find_record(type);
    int kind = record != NULL && is_current(record, type) ? record->kind : -1;
    int is_namedtuple = kind == KIND_TUPLE && record->data == Py_None;
    if (type == &PyTuple_Type || type == &PyList_Type || is_namedtuple) {
        held = held && type != &PyList_Type;
        if ((!held || is_namedtuple) && learn_items(known, x) < 0) return -1;
        parts = PySequence_Fast_ITEMS(x);
        n = Py_SIZE(x);
    } else if (type == &PyMethod_Type) {
        return held ? learn_static(known, PyMethod_GET_FUNCTION(x), 1, 0, depth) : -1;
    } else if (type == &PySlice_Type) {
        PySliceObject *slice = (PySliceObject *)x;
        if (!held) return -1;
        small[n++] = slice->start;
        small[n++] = slice->stop;
        small[n++] = slice->step;
    } else if (is_function_type(type) || kind == KIND_IDENTITY || kind == KIND_PURE ||
               (whole && (kind == KIND_PARTS || kind == KIND_KEY) && !record->is_mutable)) {
        return add_part(known, x, BY_TYPE, 0);
    } else if (kind == KIND_FIELDS && record->names == record->data) {
        if (learn_attributes(known, (Record *)record, x, small) < 0) return -1;
        held = 1;
        n = record->n_fields;
    } else {
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if (learn_static(known, parts[i], held, 0, depth) < 0) return -1;
    return 0;
}

/* The parts of a tree, each before those that it holds; -1 if there are others than these.
Runs no Python. */
static int learn_parts(Known *known, PyObject *x, int held, int depth) {
    PyTypeObject *type = Py_TYPE(x);
    PyObject *small[SMALL_FIELDS + 1], **parts = small, *key, *value;
    Py_ssize_t n, n_dynamic, position = 0;
    if (type == array_type || x == Py_None) return 0;
    if (depth-- == 0) return -1;
    if (type == &PyDict_Type) {
        if (learn_values(known, x) < 0) return -1;
        while (PyDict_Next(x, &position, &key, &value))
            if (!PyUnicode_CheckExact(key) || learn_parts(known, value, 1, depth) < 0)
                return -1;
        return 0;
    }
    Record *record = find_record(type);
    if (record != NULL && !is_current(record, type)) return -1;
    int node = record == NULL ? NODE_STATIC : record->node;
    if (type == &PyTuple_Type || type == &PyList_Type || node == NODE_NAMEDTUPLE) {
        if (learn_items(known, x) < 0) return -1;
        held = held && type != &PyList_Type;
        parts = PySequence_Fast_ITEMS(x);
        n = n_dynamic = Py_SIZE(x);
    } else if (node == NODE_MODULE || node == NODE_DATACLASS) {
        if (learn_attributes(known, record, x, small) < 0) return -1;
        held = 1;
        n = record->n_fields;
        n_dynamic = record->n_dynamic;
    } else if (node == NODE_STATE) {
        if (learn_attributes(known, record, x, small) < 0 || !PyDict_CheckExact(*small))
            return -1;
        return learn_parts(known, *small, 1, depth);
    } else {
        return node == NODE_STATIC ? learn_static(known, x, held, 1, depth) : -1;
    }
    for (Py_ssize_t i = 0; i < n; i++)
        if ((i < n_dynamic ? learn_parts(known, parts[i], held, depth)
                           : learn_static(known, parts[i], held, 1, depth)) < 0)
            return -1;
    return 0;
}

/* --- trees ------------------------------------------------------------------------ */

/* Pushes children to visit, before those that are already on the stack. */
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

/* Replaces the previous entry of the same slot. */
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
    int exact = n && (PyLong_CheckExact(items[0].key) || PyUnicode_CheckExact(items[0].key));
    /* Keys of the user's own type would be kept alive. */
    int keep = exact && n > FEW_KEYS && n <= MANY_KEYS;
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

/* The keys of a dictionary in JAX's order, which may run the user's code. */
static PyObject *sorted_keys(PyObject *x) {
    PyObject *keys = PyDict_Keys(x);
    if (keys == NULL || PyList_Sort(keys) == 0) return keys;
    Py_DECREF(keys);
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) return NULL;
    PyErr_Clear();
    return PyObject_CallOneArg(py_sort_keys, x); /* raises what JAX does */
}

/* Pushes what is below a dictionary: the keys that are not on the trail yet, `factory` if
it has one, and the values. */
static int push_items(Walk *w, const Item *items, Py_ssize_t n, int keys,
                      PyObject *factory) {
    for (Py_ssize_t i = n - 1; i >= 0; i--)
        if (push(w, items[i].value, VISIT_TREE) < 0) return -1;
    if (factory != NULL && push(w, factory, VISIT_STATIC) < 0) return -1;
    for (Py_ssize_t i = n - 1; keys && i >= 0; i--)
        if (push(w, items[i].key, VISIT_STATIC) < 0) return -1;
    return 0;
}

/* A dictionary whose keys are of any type. `keys` are those of an `OrderedDict`. */
static int walk_odd_dict(Walk *w, PyObject *x, PyObject *keys, PyObject *factory) {
    own_everything(w);
    keys = as_tuple(keys == NULL ? sorted_keys(x) : Py_NewRef(keys));
    if (keys == NULL) return -1;
    Py_ssize_t n = PyTuple_GET_SIZE(keys), found = 0;
    int failed = -1;
    Item *items = PyMem_Malloc((n + 1) * sizeof(Item));
    if (items == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    for (; found < n; found++) {
        PyObject *key = PyTuple_GET_ITEM(keys, found);
        PyObject *value = PyDict_GetItemWithError(x, key);
        if (value == NULL && !PyErr_Occurred()) PyErr_SetObject(PyExc_KeyError, key);
        if (value == NULL) goto done;
        /* The `==` of the next key may take it out of the dictionary. */
        items[found] = (Item){Py_NewRef(key), Py_NewRef(value), 0};
    }
    failed = add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x)) < 0
                 ? -1
                 : push_items(w, items, n, 1, factory);
done:
    for (Py_ssize_t i = 0; i < found; i++) {
        Py_DECREF(items[i].key);
        Py_DECREF(items[i].value);
    }
    PyMem_Free(items);
    Py_DECREF(keys);
    return failed;
}

/* A type of keys whose order and hash do not run the user's code. */
static inline int is_plain_key_type(const PyTypeObject *type) {
    return type == &PyUnicode_Type || type == &PyLong_Type ||
           (PyType_HasFeature((PyTypeObject *)type, Py_TPFLAGS_UNICODE_SUBCLASS) &&
            type->tp_richcompare == PyUnicode_Type.tp_richcompare &&
            type->tp_hash == PyUnicode_Type.tp_hash);
}

/* The items of a dictionary whose keys are all of one such type, in the order of `keys`
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
    if (n && !is_plain_key_type(type)) return 0;
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
        n = PyDict_GET_SIZE(x);
        hash = (size_t)n;
    } else if (kind == NODE_DEFAULTDICT) {
        if ((factory = PyObject_GetAttr(x, s_default_factory)) == NULL) return -1;
    }
    if (n > SMALL_FIELDS && (items = PyMem_Malloc(2 * n * sizeof(Item))) == NULL) {
        items = small;
        PyErr_NoMemory();
        goto done;
    }
    if (!read_items(x, keys, items, n, &hash)) {
        failed = walk_odd_dict(w, x, keys, factory);
        goto done;
    }
    sorted = keys != NULL ? items : sort_items(items, items + n, n, hash);
    if (add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x)) < 0) goto done;
    int atoms = 1;
    for (i = 0; i < n && atoms > 0; i++) atoms = add_atom(w, sorted[i].key);
    if (atoms > 0 && factory != NULL) {
        int added = add_atom(w, factory);
        if (added < 0) goto done;
        if (added) Py_CLEAR(factory);
    }
    if (atoms < 0) goto done;
    failed = push_items(w, sorted, n, !atoms, factory);
    /* Else it is the dictionary's alone, which a key's attributes may change. */
    if (failed == 0 && factory != NULL) own_everything(w);
done:
    Py_XDECREF(factory);
    Py_XDECREF(keys);
    if (items != small) PyMem_Free(items);
    return failed;
}

/* A Module or a dataclass: its dictionary is read directly, as Equinox does as well. */
static int walk_module(Walk *w, Record *record, PyObject *x) {
    PyObject *small[SMALL_FIELDS + 1], **fields = small;
    Py_ssize_t n_names = PyTuple_GET_SIZE(record->names), n_dynamic = record->n_dynamic;
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    if (is_known(w, x, dict)) {
        Py_DECREF(dict);
        return add_known(w);
    }
    if (n_names > SMALL_FIELDS &&
        (fields = PyMem_Malloc((n_names + 1) * sizeof(PyObject *))) == NULL) {
        Py_DECREF(dict);
        PyErr_NoMemory();
        return -1;
    }
    int failed = -1;
    Py_ssize_t n = read_fields(record, dict, fields);
    Py_DECREF(dict); /* the instance has it */
    if (add_reading(w, record, n) < 0) goto done;
    if (n < 0) {
        failed = walk_custom(w, record, x);
        goto done;
    }
    failed = add_object(w, TAG(T_NODE, n_dynamic), (PyObject *)Py_TYPE(x));
    /* From the first static on that has parts, or needs Python, all comes later: what runs
    may change the dictionary. The trail is the same either way, since what can be written at
    once depends on which types have been met before. */
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
done:
    if (fields != small) PyMem_Free(fields);
    return failed;
}

/* An `eqx.nn.State`: as its flatten function, which takes 6 us for 16 entries, the values of
its dictionary, and a tuple of the keys. */
static int walk_state(Walk *w, Record *record, PyObject *x) {
    PyObject *small[SMALL_FIELDS + 1], **values = small, *state, *key, *value;
    PyObject *dict = dict_of(x);
    if (dict == NULL) return -1;
    if (is_known(w, x, dict)) {
        Py_DECREF(dict);
        return add_known(w);
    }
    int failed = read_fields(record, dict, small) != 1 || !PyDict_CheckExact(small[0]);
    Py_DECREF(dict); /* the instance has it */
    state = small[0];
    Py_ssize_t n = failed ? 0 : PyDict_GET_SIZE(state), i = 0, position = 0;
    while (!failed && PyDict_Next(state, &position, &key, &value))
        failed = !PyUnicode_CheckExact(key);
    if (failed) return walk_custom(w, record, x);
    if (n > SMALL_FIELDS && (values = PyMem_Malloc(n * sizeof(PyObject *))) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    failed = add_object(w, TAG(T_NODE, n), (PyObject *)Py_TYPE(x)) < 0 ||
             add_object(w, TAG(T_STATIC, n), (PyObject *)&PyTuple_Type) < 0;
    for (position = 0; !failed && PyDict_Next(state, &position, &key, &value); i++) {
        failed = add_object(w, T_STR, key) < 0;
        values[i] = value;
    }
    if (!failed) failed = visit_children(w, values, n);
    if (values != small) PyMem_Free(values);
    return failed ? -1 : 0;
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
    if (type == &PyDict_Type)
        return is_known(w, x, x) ? add_known(w) : walk_dict(w, NULL, x);
    if (type == &PyUnicode_Type || type == &PyLong_Type || type == &PyFloat_Type ||
        type == &PyBool_Type || type == &PyFunction_Type)
        return walk_static(w, x, VISIT_HASHABLE);
    Record *record = record_of(w, x);
    if (record == NULL) return -1;
    switch (record->node) {
    case NODE_TRACER:
        own_everything(w);
        int is_array = PyObject_IsInstance(x, array_class);
        if (is_array < 0) return -1;
        if (!is_array) return walk_static(w, x, VISIT_HASHABLE);
        w->tracer = 1;
        return add_array(w, x);
    case NODE_OTHER_ARRAY:
    case NODE_ARRAY:
        return add_array(w, x);
    case NODE_NUMPY:
        w->numpy = NUMPY_IN_PLACE;
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
    case NODE_STATE:
        return walk_state(w, record, x);
    case NODE_CUSTOM:
        return walk_custom(w, record, x);
    default:
        return walk_static(w, x, VISIT_HASHABLE);
    }
}

static int walk_tree(Walk *w, PyObject *root) {
    size_t base = w->n_pending;
    w->top_base = SIZE_MAX;
    if (push(w, root, VISIT_TREE) < 0) return -1;
    while (w->n_pending > base) {
        uintptr_t next = w->pending[--w->n_pending];
        PyObject *x = w->current_tree = POINTER(next);
        int visit = VISIT(next);
        int failed = visit == VISIT_TREE ? walk_node(w, x) : walk_static(w, x, visit);
        if (failed == 0 && w->n_trail > w->limit) failed = check_ends(w, base, &w->limit);
        w->current_tree = NULL;
        if (w->owning) Py_DECREF(x);
        if (failed < 0) return -1;
    }
    return 0;
}

/* Whether what was not read (`T_UNREAD`) has parts of types that a part was not made for. */
static int has_other_types(const Entry *trail, size_t n_trail) {
    const PyObject *unread = NULL;
    for (size_t i = 0, stop = 0; i < n_trail; i++) {
        if (KIND_OF(trail[i].tag) == T_UNREAD) {
            unread = trail[i].as.object;
            stop = i + 1 + (trail[i].tag >> 8);
        } else if (i < stop && KIND_OF(trail[i].tag) == T_STATIC) {
            PyTypeObject *type = (PyTypeObject *)trail[i].as.object;
            if (can_change(type) && type != Py_TYPE(unread)) return 1;
        }
    }
    return 0;
}

/* Learns what a tree is to a walk that has given that trail; nothing if it has other parts.
The caller owns all that it goes through: if it does run Python, it learns nothing. -1 if that
was interrupted. */
static int learn(Known *known, const Entry *trail, size_t n_trail) {
    Walk walk, *w = &walk;
    Known learnt = {.root = known->root, .version = known->version, .start = known->start,
                    .n_calls = known->n_calls, .n_learnt = known->n_learnt + 1,
                    .n_registered = n_registered};
    int found = known->start < n_trail &&
                learn_parts(&learnt, known->root, 1, MANY_LEVELS) == 0;
    walk_init(w);
    w->limit = SIZE_MAX / 2; /* it ends */
    if (found) {
        w->last_trail = trail + known->start;
        w->n_last = n_trail - known->start;
        found = walk_tree(w, known->root) == 0 && !w->owning &&
                !has_other_types(w->trail, w->n_trail);
    }
    size_t n = w->n_trail;
    if (found && n > 0 && known->start + n <= n_trail) {
        /* What it refers to must be held by that trail, whose last entry may count the arrays
        that follow as well. */
        const Entry *there = &trail[known->start + n - 1], *last = &w->trail[n - 1];
        found = memcmp(trail + known->start, w->trail, (n - 1) * sizeof(Entry)) == 0 &&
                there->tag == last->tag &&
                (KIND_OF(last->tag) == T_ARRAYS || there->as.bits == last->as.bits);
    } else {
        found = 0;
    }
    if (found) {
        learnt.trail = PyMem_Malloc(n * sizeof(Entry));
        learnt.arrays = PyMem_Malloc((w->n_arrays + 1) * sizeof(PyObject *));
        learnt.mutables = PyMem_Malloc((w->n_mutables + 1) * sizeof(Mutable));
        found = learnt.trail != NULL && learnt.arrays != NULL && learnt.mutables != NULL;
    }
    if (found) {
        memcpy(learnt.trail, w->trail, n * sizeof(Entry));
        memcpy(learnt.arrays, w->arrays + 1, w->n_arrays * sizeof(PyObject *));
        learnt.n_trail = n;
        learnt.unread = w->unread;
        learnt.n_arrays = w->n_arrays;
        for (; learnt.n_mutables < w->n_mutables; learnt.n_mutables++)
            learnt.mutables[learnt.n_mutables] = w->mutables[learnt.n_mutables];
    }
    int interrupted = PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception);
    if (!interrupted) PyErr_Clear(); /* it was only for speed */
    walk_free(w);
    free_known(known);
    *known = learnt;
    return interrupted ? -1 : 0;
}

/* Of a call like the one before: learns the trees that it was given as well, the last few
times. One that is changed again and again is not learnt for ever. */
static int learn_tops(Known *known, Walk *w, const Entry *trail, size_t n_trail) {
    for (size_t i = 0; i < w->n_tops; i++, known++) {
        const Top *top = &w->tops[i];
        if (top->was_known) continue;
        if (known->root != top->object || known->version != top->version ||
            known->start != top->start) {
            if (known->n_learnt) {
                free_known(known);
                *known = (Known){0};
            }
            known->root = top->object;
            known->version = top->version;
            known->start = top->start;
            known->n_calls = 0;
        }
        known->n_trail = 0; /* it has changed, and is not compared in vain from now on */
        if (known->n_learnt < FEW_TIMES && ++known->n_calls % FEW_CALLS == 0) {
            own_everything(w);
            if (learn(known, trail, n_trail) < 0) return -1;
        }
    }
    return 0;
}

/* --- comparing trails --------------------------------------------------------------- */

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
        case T_UNREAD:
            x = 0; /* the tag has bits of the hash */
        }
        hash = mix(hash, entry->tag, x);
    }
    /* The table goes by the low bits, and 1.0 and 2.0 differ in high ones: of the last
    entry those have not got there. */
    hash = (hash ^ (hash >> 32)) * ODD;
    return hash ^ (hash >> 32);
}

/* Whether the dimensions of two equal `jax.ShapeDtypeStruct`s are of the same types, of which
their `==` asks nothing. */
static int same_dimensions(PyObject *x, PyObject *y) {
    PyObject *a = PyObject_GetAttr(x, s_shape), *b = PyObject_GetAttr(y, s_shape);
    int same = -1;
    if (a != NULL && b != NULL) {
        same = PyTuple_Check(a) && PyTuple_Check(b) && Py_SIZE(a) == Py_SIZE(b);
        for (Py_ssize_t i = 0; same && i < Py_SIZE(a); i++)
            same = Py_TYPE(PyTuple_GET_ITEM(a, i)) == Py_TYPE(PyTuple_GET_ITEM(b, i));
    }
    Py_XDECREF(a);
    Py_XDECREF(b);
    return same;
}

/* Whether two values of a kind that is compared by `==` are the same: 1 or 0, or -1. */
static int same_object(PyObject *x, PyObject *y) {
    if (Py_TYPE(x) != Py_TYPE(y)) return 0;
    const Record *record = find_record(Py_TYPE(x)); /* Python may drop it */
    int is_struct = record != NULL && record->node == NODE_STRUCT;
    int same = PyObject_RichCompareBool(x, y, Py_EQ);
    return same > 0 && is_struct ? same_dimensions(x, y) : same;
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
        return same_object(x, y);
    case T_UNREAD:
        return 1; /* what follows decides */
    default:
        return 0;
    }
}

static int same_trail(const Entry *a, size_t n_a, const Entry *b, size_t n_b) {
    int same = n_a == n_b;
    for (size_t i = 0; i < n_a && same > 0; i++) same = same_entry(&a[i], &b[i]);
    return same;
}
