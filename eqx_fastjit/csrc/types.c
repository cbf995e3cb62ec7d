/* Which reader a type has: Python chooses once, by name (`_statics.reader_of`). */

#include "fastjit.h"

static void type_free(Type *type) {
    Py_XDECREF(type->type);
    Py_XDECREF(type->names);
    PyMem_Free(type);
}

/* Reads a `_statics.Reader`. */
static Type *type_from(PyTypeObject *cls, PyObject *reader) {
    Type *type = PyMem_Calloc(1, sizeof(Type));
    if (type == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    type->type = (PyTypeObject *)Py_NewRef((PyObject *)cls);
    const char *name;
    PyObject *names;
    if (!PyArg_ParseTuple(reader, "sppO!n", &name, &type->is_node, &type->is_mutable,
                          &PyTuple_Type, &names, &type->n_dynamic))
        goto failed;
    type->names = Py_NewRef(names);
    type->read = reader_called(name);
    if (type->read != NULL) return type;
    PyErr_Format(PyExc_SystemError, "there is no reader called %s", name);
failed:
    type_free(type);
    return NULL;
}

/* Registers the type of a value on first use. */
Type *types_add(State *state, PyObject *x) {
    PyTypeObject *cls = Py_TYPE(x);
    PyObject *reader = PyObject_CallOneArg(state->given[READER_OF], x);
    if (reader == NULL) return NULL;
    Type *type = type_from(cls, reader);
    Py_DECREF(reader);
    if (type == NULL) return NULL;
    /* A program that makes up classes may have any number of them. */
    if (2 * state->n_types >= MAX_TYPES) types_forget(state);
    Type **slot = type_slot(state, cls);
    if (*slot != NULL) { /* choosing runs Python, which has registered it meanwhile */
        type_free(type);
        return *slot;
    }
    state->n_types++;
    return *slot = type;
}

/* Has each type's reader chosen anew. What was known is never freed: walks may be in the
middle of it, and it is rare that a class is registered late. */
void types_forget(State *state) {
    memset(state->types, 0, sizeof(state->types));
    state->n_types = 0;
}

void types_free(State *state) {
    for (size_t i = 0; i < MAX_TYPES; i++)
        if (state->types[i] != NULL) type_free(state->types[i]);
}
