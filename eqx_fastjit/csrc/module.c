/* The module `eqx_fastjit._native`, and what Python sets up once (`_engine.py`). */

#include "fastjit.h"

Shared shared;

/* In the order of `Given` and `Name`. */
static const char *const given_names[N_GIVEN] = {
    "reader_of",   "state_of",          "is_flattened", "sorted_keys",
    "transferred", "flatten_one_level", "flat_output",  "copied_bytes",
};
static const char *const names[N_NAMES] = {
    "error_of_call", "complete_call", "specialize", "nbytes", "copy", "clock", "call",
};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
    return type;
}

/* Another one would share what calls share, but have other types. */
static int module_exec(PyObject *module) {
    if (shared.plan_type != NULL) {
        PyErr_SetString(PyExc_ImportError, "there is one engine in a process");
        return -1;
    }

    PyTypeObject *callable_type = add_type(module, &callable_spec);
    Py_XDECREF(callable_type);
    if (callable_type == NULL ||
        (shared.specialization_type = add_type(module, &specialization_spec)) == NULL ||
        (shared.plan_type = add_type(module, &plan_spec)) == NULL)
        return -1;

    for (size_t i = 0; i < N_NAMES; i++)
        if ((shared.names[i] = PyUnicode_InternFromString(names[i])) == NULL) return -1;
    shared.type_died = PyCFunction_New(&type_died_method, NULL);
    if (shared.type_died == NULL) return -1;

    if (PyModule_AddFunctions(module, ticks_functions) < 0) return -1;
    return PyModule_AddFunctions(module, call_functions);
}

/* Sets what Python gives, from a dictionary. */
static PyObject *setup(PyObject *self, PyObject *given) {
    (void)self;
    for (size_t i = 0; i < N_GIVEN; i++) {
        PyObject *x = PyDict_GetItemString(given, given_names[i]);
        if (x == NULL) return PyErr_Format(PyExc_TypeError, "%s is missing", given_names[i]);
        Py_XSETREF(shared.given[i], Py_NewRef(x));
    }
    Py_RETURN_NONE;
}

static PyObject *forget_readers(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    types_forget();
    Py_RETURN_NONE;
}

static PyObject *is_calling(PyObject *self, PyObject *unused) {
    (void)self, (void)unused;
    LOCK();
    int is_any = shared.n_walks > 0;
    UNLOCK();
    return PyBool_FromLong(is_any);
}

static PyMethodDef module_methods[] = {
    {"read", read_signature, METH_VARARGS, "The signature of a call, and its arrays."},
    {"setup", setup, METH_O, "Set what the engine needs of Python, by name."},
    {"is_calling", is_calling, METH_NOARGS, "Whether a call is under way, in any thread."},
    {"forget_readers", forget_readers, METH_NOARGS, "Choose the reader of each type anew."},
    {NULL}};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL}};

static struct PyModuleDef native_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "eqx_fastjit._native",
    .m_doc = "The native engine of eqx_fastjit.",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&native_module); }
