/* One native pass over a call: bind, read, look up, call `jax.jit`, build the result.

    types.c      which reader a type has
    read.c       reads a value: its arrays, and all else onto a trail (`_statics.py`)
    signature.c  trails: hash, `==`
    table.c      specializations by signature; statics that were changed since
    plan.c       builds the result of a trace
    call.c       the callable: call, block, errors
    ticks.c      a thread by which tools sample where Python is
    module.c     the module, and what Python sets up

Three invariants hold everywhere and are not argued again:

1. The walk owns whatever it holds. Any Python may run at any point of it.
2. Nothing that another thread, or Python code, can reach lies on the C stack.
3. Tracing reads the statics that the specialization stores, not those of the call.

The module needs no GIL. Without one four more things hold, which cost nothing where there is one
("threads", below):

4. Each walk, with all that it has, is one thread's at a time: so most of what is kept is in walks.
5. What is shared by all (types, free walks) is in `shared`, and is changed under its lock.
6. A specialization is not changed once it is in a table, and who reads it holds it.
7. Containers of the user's may be changed at any time: their items are read one by one, each
   under the container's own lock, and held. */

#ifndef FASTJIT_H
#define FASTJIT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* --- threads -------------------------------------------------------------------------- */

#ifdef Py_GIL_DISABLED
#define LOCK() PyMutex_Lock(&shared.lock)
#define UNLOCK() PyMutex_Unlock(&shared.lock)
#if defined(_MSC_VER) /* with /volatile:ms, the default of x64, these acquire and release */
#define LOAD(place) (*(void *volatile *)&(place))
#define STORE(place, value) (*(void *volatile *)&(place) = (value))
#else
#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_ACQUIRE)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELEASE)
#endif
#else
#define LOCK() (void)0
#define UNLOCK() (void)0
#define LOAD(place) (place)
#define STORE(place, value) ((place) = (value))
#endif

/* A tuple of items, with references of its own. */
static inline PyObject *tuple_of(PyObject *const *items, Py_ssize_t n) {
    PyObject *tuple = PyTuple_New(n);
    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    return tuple;
}

/* The item of a list, a new reference; NULL if it is not there any more. */
static inline PyObject *list_item(PyObject *list, Py_ssize_t i) {
#ifdef Py_GIL_DISABLED
    PyObject *item = PyList_GetItemRef(list, i);
    if (item == NULL) PyErr_Clear();
    return item;
#else
    return i < PyList_GET_SIZE(list) ? Py_NewRef(PyList_GET_ITEM(list, i)) : NULL;
#endif
}

/* Sets *value: a new reference, or NULL if the key is not there. Returns -1 with an error. */
static inline int get_item(PyObject *dict, PyObject *key, PyObject **value) {
#ifdef Py_GIL_DISABLED
    return PyDict_GetItemRef(dict, key, value);
#else
    *value = Py_XNewRef(PyDict_GetItemWithError(dict, key));
    return *value == NULL && PyErr_Occurred() ? -1 : 0;
#endif
}

#ifndef Py_BEGIN_CRITICAL_SECTION /* before Python 3.13 */
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

/* --- the trail: what a call is, but for its arrays ------------------------------------ */

typedef enum {
    /* With an object, which `entry_object` tells by the order of kinds. */
    ARRAY, /* an array, of any shape and dtype: `jax.jit` tells those apart; its object is NULL */
    TYPE,  /* the type of what follows */
    SAME,  /* this very object */
    EQUAL, /* an object that is compared by `==`; its hash stands before it, as BITS */
    /* The same object of these is the same value (`is_constant`, by the order of kinds). */
    FIXED, /* this very object, of a type that C defines: nobody registers it with JAX */
    TEXT,  /* a `str` */
    INT,   /* an `int` of 64 bits */
    FLOAT, /* a `float`, compared by its bits */
    /* Without an object. */
    BITS,  /* a number: a length, a hash, the value of a subclass of `int` */
    END,   /* after the last entry of a specialization's */
} EntryKind;

typedef struct {
    uint64_t kind; /* of 64 bits, so that two trails can be compared by `memcmp` */
    union {
        PyObject *object; /* owned, or NULL */
        uint64_t bits;
    } as;
} Entry;

static inline PyObject *entry_object(const Entry *entry) {
    return entry->kind >= BITS ? NULL : entry->as.object;
}

/* The same object of these kinds is the same value, without a look at its type. */
static inline int is_constant(const Entry *entry) {
    return entry->kind - FIXED <= FLOAT - FIXED; /* unsigned */
}

static inline uint64_t double_bits(double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

/* By which an INT or a FLOAT is compared. */
static inline uint64_t number_bits(uint64_t kind, PyObject *x) {
    return kind == INT ? (uint64_t)PyLong_AsLongLong(x) : double_bits(PyFloat_AS_DOUBLE(x));
}

/* A static that can be changed in place, and the part of the trail that tells its state. */
typedef struct {
    PyObject *object; /* owned */
    size_t start, stop;
} Mutable;

/* --- types ---------------------------------------------------------------------------- */

struct Walk;
struct Type;

/* Reads a value of a type. `as_static`: below a static, where arrays are static, too. */
typedef int (*Reader)(struct Walk *w, const struct Type *type, PyObject *x, int as_static);

typedef struct Type {
    PyTypeObject *type;   /* borrowed: NULL once it has died */
    PyObject *reference;  /* owned: a weak one, which says when it dies */
    struct Type *next;    /* of its bucket, or of those that have died */
    Reader read;
    int is_node;        /* to JAX; otherwise all below it is static */
    int is_mutable;     /* as a static */
    int may_be_equal;   /* its values, by an `__eq__` or a state of their own */
    Py_ssize_t n_dynamic;
    PyObject *names;    /* of fields, the dynamic ones first: a tuple, or NULL */
} Type;

/* --- the walk over a call ------------------------------------------------------------- */

/* A static that is being read, and those around it. */
typedef struct BeingRead {
    PyObject *object;
    struct BeingRead *around;
} BeingRead;

/* Keys of a dictionary, as it has them, and sorted. To sort them takes much longer than to see
that they are the same again. */
typedef struct {
    PyObject *keys, *sorted; /* owned: lists, or NULL */
    PyObject *places; /* of each key, its number among the sorted ones: `Py_ssize_t` as bytes */
} KeyOrder;

#define N_ORDERS 128 /* dictionaries whose order a walk remembers */
#define N_TRIED 4 /* places among `orders` that are looked at for a dictionary */
#define MOST_KEPT (1 << 16) /* entries of a free walk's buffers */

struct Specialization;

/* Most calls are like the one before. So as long as a walk reads what the last specialization's
trail has, entry by entry, it owns no trail: it moves along that one. At the first difference it
copies what it has passed, and has a trail of its own from there on. */
typedef struct Walk {
    struct Specialization *last; /* owned, or NULL */
    const Entry *next; /* what is expected of last's trail; `no_entry` if the walk has its own */
    Entry *trail;      /* its own: empty as long as it moves along that of `last` */
    size_t n_trail, room_trail;
    PyObject **arrays; /* owned */
    size_t n_arrays, room_arrays;
    Mutable *mutables; /* owned: empty as long as the walk has no trail of its own; ... */
    size_t n_mutables; /* ... but these are counted, and are the first witnesses of `last` */
    size_t room_mutables;
    PyObject *values;    /* owned: a tuple, one for each parameter; NULL if no call is read */
    PyObject *observer;  /* of the call: owned, or NULL */
    PyObject *began;     /* what its clock returned as the call began: owned, or NULL */
    BeingRead *being_read; /* the innermost static that can be changed */
    int below_mutable;   /* below a static that is in `mutables` */
    int abstract;        /* a `jax.ShapeDtypeStruct` stands for an array */
    const Type *asked;   /* the type of which JAX was asked last whether it flattens its values */
    int has_tracers;     /* whether any array is a tracer */
    int reads_numpy;     /* whether the device reads memory of NumPy's that the user may write to */
    int static_numpy;    /* whether any static is, or has, an array of NumPy */
    Py_ssize_t numpy_bytes; /* of all arrays of NumPy */
    KeyOrder orders[N_ORDERS]; /* by the address of the first key, and how many there are */
    struct Walk *next_free;
} Walk;

extern const Entry no_entry; /* an `END`, so that a walk at it expects nothing */

#define FORGOTTEN 2048 /* buckets of types; and a last one, where nobody looks them up */

/* Functions of Python's that `setup` is given (`_engine.py`). */
typedef enum {
    READER_OF, STATE_OF, IS_FLATTENED, SORTED_KEYS, TRANSFERRED, FLATTEN_ONE_LEVEL, FLAT_OUTPUT,
    COPIED_BYTES, N_GIVEN
} Given;

/* Names of attributes, as `str`. */
typedef enum { ERROR_OF_CALL, COMPLETE_CALL, SPECIALIZE, NBYTES, COPY, CLOCK, CALL, N_NAMES } Name;

/* What all calls share: there is one in a process, and lives as long. */
typedef struct {
    PyTypeObject *specialization_type, *plan_type;
    PyObject *given[N_GIVEN], *names[N_NAMES];
    PyObject *type_died; /* called when a class has died (`types.c`) */
#ifdef Py_GIL_DISABLED
    PyMutex lock; /* of all that follows; types are looked up without it */
#endif
    PyObject *observer; /* a `_blocking.Observer`: owned, or NULL */
    Walk *free_walks;
    Py_ssize_t n_walks; /* those in use, in all threads */
    Type *dead_types; /* of classes that have died: they are used again */
    Type *types[FORGOTTEN + 1]; /* buckets, by the type's address */
} Shared;

extern Shared shared;

/* --- reading: `read.c`, `types.c`; what returns an `int` returns -1 with an error --------- */

Walk *walk_take(void);
int walk_own_trail(Walk *w);
void walk_forget(Walk *w); /* what it has read; not values and observer of the call */
void walk_give_back(Walk *w);
int read_value(Walk *w, PyObject *x, int as_static);
int read_values(Walk *w, PyObject *values);
int copy_numpy(Walk *w);
Reader reader_called(const char *name); /* the one of this name */

Type *types_add(PyObject *x);
void types_forget(void); /* readers are chosen again from now on */
extern PyMethodDef type_died_method;

static inline size_t type_hash(const PyTypeObject *cls) {
    return (size_t)(((uint64_t)(uintptr_t)cls >> 4) * 0x9E3779B97F4A7C15u >> 32) % FORGOTTEN;
}

/* What is known of the type of a value that the caller holds; NULL if there is nothing yet.

Without the lock: an entry gets its type before it is put here, and what was known of a class that
has died is never freed (`types.c`). */
static inline Type *type_known(const PyTypeObject *cls) {
    Type *type = LOAD(shared.types[type_hash(cls)]);
    while (type != NULL && LOAD(type->type) != cls) type = LOAD(type->next);
    return type;
}

/* The same; chosen now if there is nothing. NULL with an error. */
static inline Type *type_of(PyObject *x) {
    Type *type = type_known(Py_TYPE(x));
    return type != NULL ? type : types_add(x);
}

/* (Of an empty trail the pointer may be NULL, which `memcmp` does not take.) */
static inline int trail_identical(const Entry *a, const Entry *b, size_t n) {
    return n == 0 || memcmp(a, b, n * sizeof(Entry)) == 0;
}

uint64_t trail_hash(const Entry *trail, size_t n);

/* Whether two trails are equal, objects by `==` where they are `EQUAL`: 1, 0 or -1. */
int trail_equal(const Entry *a, size_t n_a, const Entry *b, size_t n_b);

/* --- specializations ------------------------------------------------------------------ */

typedef struct Specialization {
    PyObject_HEAD
    PyObject *jitted; /* `jax.jit` of a function of the arrays alone */
    PyObject *flat;   /* that function: `FlatFunction` */
    Entry *trail; /* and `END` after it */
    size_t n_trail;
    uint64_t hash;
    /* Statics that it was made with and that can be changed: what it traces reads them. */
    Mutable *witnesses;
    size_t n_witnesses;
    int static_numpy; /* whether any of these is, or has, an array of NumPy */
    PyObject *weakrefs;
} Specialization;

/* `last` is a cell with the specialization that the last call had. */
void table_expect(PyObject *last, Walk *w);
Specialization *table_find(PyObject *table, PyObject *last, Walk *w);
PyObject *read_signature(PyObject *module, PyObject *args);

/* --- results -------------------------------------------------------------------------- */

struct Step;

typedef struct {
    PyObject_HEAD
    struct Step *root;
    Py_ssize_t n_arrays;
    int blocks; /* what Python has to do after a call (`_blocking.py`): 0 is nothing */
    PyObject *weakrefs;
} Plan;

PyObject *plan_build(const Plan *self, PyObject *const *arrays);

/* The types' specifications, for `module.c`. */
extern PyType_Spec callable_spec, specialization_spec, plan_spec;
extern PyMethodDef call_functions[], ticks_functions[];

/* --- errors --------------------------------------------------------------------------- */

#if PY_VERSION_HEX >= 0x030C0000
#define take_error PyErr_GetRaisedException
#define put_error PyErr_SetRaisedException /* takes the reference */
#else
static inline PyObject *take_error(void) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) PyException_SetTraceback(error, traceback);
    Py_XDECREF(type);
    Py_XDECREF(traceback);
    return error;
}
static inline void put_error(PyObject *error) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
}
#endif

#endif
