/* Which reader a type has: Python chooses once, by name (`_statics.reader_of`).

A type is only referred to weakly, so that classes that a program makes up are freed. While a
value is read it holds its class, so what is known of that stays. What was known of a class that
has died is used again for another, but not freed: other threads may be looking at it. */

#include "fastjit.h"

/* What was known of a class is used again. */
static void type_give_back(Type *type) {
    LOCK();
    STORE(type->type, NULL);
    type->next_dead = shared.dead_types;
    shared.dead_types = type;
    UNLOCK();
}

/* A weak reference says that its class has died. */
static PyObject *type_died(PyObject *self, PyObject *reference) {
    (void)self;
    Type *dead = NULL;

    LOCK();
    for (size_t i = 0; i < MAX_TYPES; i++) {
        Type *type = shared.types[i];
        if (type != NULL && type->type != NULL && type->reference == reference) dead = type;
    }
    UNLOCK();

    if (dead != NULL) type_give_back(dead);
    Py_RETURN_NONE;
}

PyMethodDef type_died_method = {"type_died", type_died, METH_O, NULL};

/* One of a class that has died, or a new one. */
static Type *type_take(void) {
    LOCK();
    Type *type = shared.dead_types;
    if (type != NULL) shared.dead_types = type->next_dead;
    UNLOCK();

    if (type == NULL) type = PyMem_Calloc(1, sizeof(Type));
    return type != NULL ? type : (Type *)PyErr_NoMemory();
}

/* Sets all but the type itself, by a `_statics.Reader`. */
static int type_set(Type *type, PyTypeObject *cls, PyObject *reader) {
    const char *name;
    PyObject *names;
    if (!PyArg_ParseTuple(reader, "sppO!n", &name, &type->is_node, &type->is_mutable,
                          &PyTuple_Type, &names, &type->n_dynamic))
        return -1;

    type->read = reader_called(name);
    if (type->read == NULL) {
        PyErr_Format(PyExc_SystemError, "there is no reader called %s", name);
        return -1;
    }

    PyObject *reference = PyWeakref_NewRef((PyObject *)cls, shared.type_died);
    if (reference == NULL) return -1;
    Py_XSETREF(type->reference, reference);
    Py_XSETREF(type->names, Py_NewRef(names));
    return 0;
}

static void types_clear(void) {
    for (size_t i = 0; i < MAX_TYPES; i++) STORE(shared.types[i], NULL);
    shared.n_types = 0;
}

/* Puts it where it is looked up, under the lock. */
static void type_put(Type *type, PyTypeObject *cls) {
    /* A program that makes up classes may have any number of them. */
    if (2 * shared.n_types >= MAX_TYPES) types_clear();
    size_t i = type_hash(cls);
    while (shared.types[i % MAX_TYPES] != NULL) i++;
    STORE(type->type, cls);
    STORE(shared.types[i % MAX_TYPES], type);
    shared.n_types++;
}

/* Registers the type of a value on first use. */
Type *types_add(PyObject *x) {
    PyTypeObject *cls = Py_TYPE(x);
    PyObject *reader = PyObject_CallOneArg(shared.given[READER_OF], x);
    if (reader == NULL) return NULL;

    Type *type = type_take();
    int failed = type == NULL || type_set(type, cls, reader) < 0;
    Py_DECREF(reader);
    if (failed) {
        if (type != NULL) type_give_back(type);
        return NULL;
    }

    LOCK();
    /* To choose it runs Python, which may have registered it meanwhile. */
    Type *other = type_known(cls);
    if (other == NULL) type_put(type, cls);
    UNLOCK();
    if (other == NULL) return type;
    type_give_back(type);
    return other;
}

/* Has each type's reader chosen anew. What was known stays where it is: walks may be in the
middle of it, and it is rare that a class is registered late. */
void types_forget(void) {
    LOCK();
    types_clear();
    UNLOCK();
}
