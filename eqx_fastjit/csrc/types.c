/* Which reader a type has: Python chooses once, by name (`_statics.reader_of`).

A type is only referred to weakly, so that classes that a program makes up are freed. While a
value is read it holds its class, so what is known of that stays. What was known of a class that
has died is used again for another, but not freed: other threads may be looking at it, and may be
led into another bucket by it. Then they find nothing, and look again under the lock. */

#include "fastjit.h"

/* What was known of a class is used again. Under the lock. */
static void type_give_back(Type *type) {
    STORE(type->type, NULL);
    STORE(type->next, shared.dead_types);
    shared.dead_types = type;
}

/* A weak reference says that its class has died. */
static PyObject *type_died(PyObject *self, PyObject *reference) {
    (void)self;
    LOCK();
    for (size_t i = 0; i <= FORGOTTEN; i++) {
        Type **place = &shared.types[i];
        while (*place != NULL && (*place)->reference != reference) place = &(*place)->next;
        Type *dead = *place;
        if (dead == NULL) continue;
        STORE(*place, dead->next);
        Py_CLEAR(dead->reference);
        type_give_back(dead);
        break;
    }
    UNLOCK();
    Py_RETURN_NONE;
}

PyMethodDef type_died_method = {"type_died", type_died, METH_O, NULL};

/* One of a class that has died, or a new one. */
static Type *type_take(void) {
    LOCK();
    Type *type = shared.dead_types;
    if (type != NULL) shared.dead_types = type->next;
    UNLOCK();

    if (type == NULL) type = PyMem_Calloc(1, sizeof(Type));
    return type != NULL ? type : (Type *)PyErr_NoMemory();
}

/* Sets all but the type itself, by a `_statics.Reader`. */
static int type_set(Type *type, PyTypeObject *cls, PyObject *reader) {
    const char *name;
    PyObject *names;
    if (!PyArg_ParseTuple(reader, "spppO!n", &name, &type->is_node, &type->is_mutable,
                          &type->may_be_equal, &PyTuple_Type, &names, &type->n_dynamic))
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

/* Registers the type of a value on first use. */
Type *types_add(PyObject *x) {
    PyTypeObject *cls = Py_TYPE(x);
    PyObject *reader = PyObject_CallOneArg(shared.given[READER_OF], x);
    if (reader == NULL) return NULL;

    Type *type = type_take();
    int failed = type == NULL || type_set(type, cls, reader) < 0;
    Py_DECREF(reader);
    Type *found = NULL;

    LOCK();
    /* To choose it runs Python, which may have registered it meanwhile. */
    if (!failed) found = type_known(cls);
    if (!failed && found == NULL) {
        Type **place = &shared.types[type_hash(cls)];
        STORE(type->type, cls);
        STORE(type->next, *place);
        STORE(*place, type);
        found = type;
    } else if (type != NULL) {
        type_give_back(type);
    }
    UNLOCK();
    return found;
}

/* Has each type's reader chosen anew. What was known stays until its class dies: walks may be in
the middle of it, and it is rare that a class is registered late. */
void types_forget(void) {
    LOCK();
    Type **end = &shared.types[FORGOTTEN];
    while (*end != NULL) end = &(*end)->next;
    for (size_t i = 0; i < FORGOTTEN; i++) {
        STORE(*end, shared.types[i]);
        STORE(shared.types[i], NULL);
        while (*end != NULL) end = &(*end)->next;
    }
    UNLOCK();
}
