/* The module `eqx_fastjit._native`, and what Python sets up once (`_engine.py`). */

#include "fastjit.h"

/* All objects that the state owns, each listed once. */
static const struct {
    size_t offset;
    PyType_Spec *spec;
} types[] = {
    {offsetof(State, callable_type), &callable_spec},
    {offsetof(State, specialization_type), &specialization_spec},
    {offsetof(State, plan_type), &plan_spec},
};

static const struct {
    size_t offset;
    const char *text;
} names[] = {
    {offsetof(State, s_error_of_call), "error_of_call"},
    {offsetof(State, s_complete_call), "complete_call"},
    {offsetof(State, s_specialize), "specialize"}, {offsetof(State, s_nbytes), "nbytes"},
    {offsetof(State, s_copy), "copy"},             {offsetof(State, s_plan), "plan"},
};

/* In the order of the parameters of `setup`. */
static const size_t functions[] = {offsetof(State, reader_of), offsetof(State, state_of),
                                   offsetof(State, flatten_one_level), offsetof(State, tree_leaves),
                                   offsetof(State, transferred)};

#define LENGTH(array) (sizeof(array) / sizeof(*(array)))

static inline PyObject **slot(State *state, size_t offset) {
    return (PyObject **)((char *)state + offset);
}

static int module_exec(PyObject *module) {
    State *state = PyModule_GetState(module);
    for (size_t i = 0; i < LENGTH(types); i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        *slot(state, types[i].offset) = type;
        if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) return -1;
    }
    for (size_t i = 0; i < LENGTH(names); i++) {
        PyObject *name = PyUnicode_InternFromString(names[i].text);
        if (name == NULL) return -1;
        *slot(state, names[i].offset) = name;
    }
    return PyModule_AddFunctions(module, call_functions);
}

/* `setup(reader_of, state_of, flatten_one_level, tree_leaves, transferred, copied_bytes)` */
static PyObject *setup(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *given[LENGTH(functions)];
    if (!PyArg_ParseTuple(args, "OOOOOn", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &state->copied_bytes))
        return NULL;
    for (size_t i = 0; i < LENGTH(functions); i++)
        Py_XSETREF(*slot(state, functions[i]), Py_NewRef(given[i]));
    Py_RETURN_NONE;
}

static PyObject *forget_readers(PyObject *module, PyObject *unused) {
    (void)unused;
    types_forget(PyModule_GetState(module));
    Py_RETURN_NONE;
}

static PyObject *is_calling(PyObject *module, PyObject *unused) {
    (void)unused;
    return PyBool_FromLong(((State *)PyModule_GetState(module))->n_calls > 0);
}

static PyMethodDef module_methods[] = {
    {"read", read_signature, METH_VARARGS, "The signature of a call, and its arrays."},
    {"find", find_signature, METH_VARARGS, "What a table has for a signature, or `None`."},
    {"setup", setup, METH_VARARGS, "What the engine needs of Python."},
    {"is_calling", is_calling, METH_NOARGS, "Whether a call is under way, in any thread."},
    {"forget_readers", forget_readers, METH_NOARGS, "Choose the reader of each type anew."},
    {NULL}};

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    for (size_t i = 0; i < LENGTH(types); i++) Py_VISIT(*slot(state, types[i].offset));
    for (size_t i = 0; i < LENGTH(functions); i++) Py_VISIT(*slot(state, functions[i]));
    return 0;
}

static int module_clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    for (size_t i = 0; i < LENGTH(types); i++) Py_CLEAR(*slot(state, types[i].offset));
    for (size_t i = 0; i < LENGTH(functions); i++) Py_CLEAR(*slot(state, functions[i]));
    return 0;
}

static void module_free(void *module) {
    State *state = PyModule_GetState((PyObject *)module);
    module_clear((PyObject *)module);
    for (size_t i = 0; i < LENGTH(names); i++) Py_CLEAR(*slot(state, names[i].offset));
    types_free(state);
    walks_free(state);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, NULL}};

struct PyModuleDef fastjit_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "eqx_fastjit._native",
    .m_doc = "The native engine of eqx_fastjit.",
    .m_size = sizeof(State),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&fastjit_module); }
