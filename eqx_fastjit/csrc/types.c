/* Which reader a type has: Python chooses once, by name (`_statics.reader_of`). */

#include "fastjit.h"

static void types_put(Types *types, Type *type) {
    size_t i = type_slot(types, type->type);
    while (types->slots[i] != NULL) i = (i + 1) & types->mask;
    types->slots[i] = type;
    types->count++;
}

/* Makes room for one more, half of the slots at least staying empty. */
static int types_reserve(Types *types) {
    if (types->slots != NULL && 2 * (types->count + 1) <= types->mask) return 0;
    size_t size = types->slots == NULL ? 256 : 2 * (types->mask + 1);
    Types larger = {PyMem_Calloc(size, sizeof(Type *)), size - 1, 0};
    if (larger.slots == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; types->slots != NULL && i <= types->mask; i++)
        if (types->slots[i] != NULL) types_put(&larger, types->slots[i]);
    PyMem_Free(types->slots);
    *types = larger;
    return 0;
}

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
    PyObject *reader = PyObject_CallOneArg(state->reader_of, x);
    if (reader == NULL) return NULL;
    Type *type = type_from(cls, reader);
    Py_DECREF(reader);
    if (type == NULL) return NULL;
    /* Choosing runs Python, which may have registered it meanwhile. */
    Type *known = types_find(&state->types, cls);
    if (known != NULL || types_reserve(&state->types) < 0) {
        type_free(type);
        return known;
    }
    types_put(&state->types, type);
    return type;
}

/* Has each type's reader chosen anew. What was known is never freed: walks may be in the
middle of it, and it is rare that a class is registered late. */
void types_forget(Types *types) {
    if (types->slots != NULL) memset(types->slots, 0, (types->mask + 1) * sizeof(Type *));
    types->count = 0;
}

void types_free(Types *types) {
    for (size_t i = 0; types->slots != NULL && i <= types->mask; i++)
        if (types->slots[i] != NULL) type_free(types->slots[i]);
    PyMem_Free(types->slots);
    *types = (Types){0};
}
