/* Which reader a type has: Python chooses once, by name (`_statics.reader_of`).

A type is only referred to weakly, so that classes that a program makes up are freed. While a
value is read it holds its class, so what is known of that stays. What is known of a class that
has died is used again for another, but not freed: other threads may be looking at it. */

#include "fastjit.h"

/* What was known of a class is used again. */
static void type_give_back(State *state, Type *type) {
    LOCK(state);
    STORE(type->type, NULL);
    type->next_dead = state->dead_types;
    state->dead_types = type;
    UNLOCK(state);
}

/* A weak reference says that its class has died. */
static PyObject *type_died(PyObject *module, PyObject *reference) {
    State *state = PyModule_GetState(module);

    LOCK(state);
    Type *type = state->all_types;
    while (type != NULL && type->reference != reference) type = type->next;
    UNLOCK(state);

    int is_used = type != NULL && type->type != NULL;
    if (is_used) type_give_back(state, type);
    Py_RETURN_NONE;
}

PyMethodDef type_died_method = {"type_died", type_died, METH_O, NULL};

/* One of a class that has died, or a new one. */
static Type *type_take(State *state) {
    LOCK(state);
    Type *type = state->dead_types;
    if (type != NULL) state->dead_types = type->next_dead;
    UNLOCK(state);
    if (type != NULL) return type;

    type = PyMem_Calloc(1, sizeof(Type));
    if (type == NULL) return (Type *)PyErr_NoMemory();
    LOCK(state);
    type->next = state->all_types;
    state->all_types = type;
    UNLOCK(state);
    return type;
}

/* Sets all but the type itself, by a `_statics.Reader`. */
static int type_set(Type *type, State *state, PyTypeObject *cls, PyObject *reader) {
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

    PyObject *reference = PyWeakref_NewRef((PyObject *)cls, state->type_died);
    if (reference == NULL) return -1;
    Py_XSETREF(type->reference, reference);
    Py_XSETREF(type->names, Py_NewRef(names));
    return 0;
}

static void types_clear(State *state) {
    for (size_t i = 0; i < MAX_TYPES; i++) STORE(state->types[i], NULL);
    state->n_types = 0;
}

/* Puts it where it is looked up, under the lock. */
static void type_put(State *state, Type *type, PyTypeObject *cls) {
    /* A program that makes up classes may have any number of them. */
    if (2 * state->n_types >= MAX_TYPES) types_clear(state);
    size_t i = type_hash(cls);
    while (state->types[i % MAX_TYPES] != NULL) i++;
    STORE(type->type, cls);
    STORE(state->types[i % MAX_TYPES], type);
    state->n_types++;
}

/* Registers the type of a value on first use. */
Type *types_add(State *state, PyObject *x) {
    PyTypeObject *cls = Py_TYPE(x);
    PyObject *reader = PyObject_CallOneArg(state->given[READER_OF], x);
    if (reader == NULL) return NULL;

    Type *type = type_take(state);
    int failed = type == NULL || type_set(type, state, cls, reader) < 0;
    Py_DECREF(reader);
    if (failed) {
        if (type != NULL) type_give_back(state, type);
        return NULL;
    }

    LOCK(state);
    /* To choose it runs Python, which may have registered it meanwhile. */
    Type *other = type_known(state, cls);
    if (other == NULL) type_put(state, type, cls);
    UNLOCK(state);
    if (other == NULL) return type;
    type_give_back(state, type);
    return other;
}

/* Has each type's reader chosen anew. What was known stays where it is: walks may be in the
middle of it, and it is rare that a class is registered late. */
void types_forget(State *state) {
    LOCK(state);
    types_clear(state);
    UNLOCK(state);
}

void types_free(State *state) {
    while (state->all_types != NULL) {
        Type *type = state->all_types;
        state->all_types = type->next;
        Py_XDECREF(type->reference);
        Py_XDECREF(type->names);
        PyMem_Free(type);
    }
}
