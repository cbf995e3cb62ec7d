/* The module `eqx_fastjit._native`, and what Python sets up once (`_engine.py`). */

#include "fastjit.h"

static const char *const names[N_NAMES] = {"error_of_call", "complete_call", "specialize",
                                           "nbytes", "copy"};

static PyTypeObject *add_type(PyObject *module, PyType_Spec *spec) {
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    if (type != NULL && PyModule_AddType(module, type) < 0) Py_CLEAR(type);
    return type;
}

static int module_exec(PyObject *module) {
    State *state = PyModule_GetState(module);
    PyTypeObject *callable_type = add_type(module, &callable_spec);
    Py_XDECREF(callable_type);
    if (callable_type == NULL ||
        (state->specialization_type = add_type(module, &specialization_spec)) == NULL ||
        (state->plan_type = add_type(module, &plan_spec)) == NULL)
        return -1;
    for (size_t i = 0; i < N_NAMES; i++)
        if ((state->names[i] = PyUnicode_InternFromString(names[i])) == NULL) return -1;
    state->type_died = PyCFunction_New(&type_died_method, module);
    if (state->type_died == NULL) return -1;
    if (PyModule_AddFunctions(module, ticks_functions) < 0) return -1;
    return PyModule_AddFunctions(module, call_functions);
}

/* `setup(*given, copied_bytes)` */
static PyObject *setup(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *given[N_GIVEN];
    if (!PyArg_ParseTuple(args, "OOOOOOOn", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &state->copied_bytes))
        return NULL;
    for (size_t i = 0; i < N_GIVEN; i++) Py_XSETREF(state->given[i], Py_NewRef(given[i]));
    Py_RETURN_NONE;
}

static PyObject *forget_readers(PyObject *module, PyObject *unused) {
    (void)unused;
    types_forget(PyModule_GetState(module));
    Py_RETURN_NONE;
}

static PyObject *is_calling(PyObject *module, PyObject *unused) {
    (void)unused;
    State *state = PyModule_GetState(module);
    LOCK(state);
    int is_any = state->n_walks > 0;
    UNLOCK(state);
    return PyBool_FromLong(is_any);
}

static PyMethodDef module_methods[] = {
    {"read", read_signature, METH_VARARGS, "The signature of a call, and its arrays."},
    {"setup", setup, METH_VARARGS, "What the engine needs of Python."},
    {"is_calling", is_calling, METH_NOARGS, "Whether a call is under way, in any thread."},
    {"forget_readers", forget_readers, METH_NOARGS, "Choose the reader of each type anew."},
    {NULL}};

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    Py_VISIT(state->specialization_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->type_died);
    Py_VISIT(state->clock);
    Py_VISIT(state->observer);
    for (size_t i = 0; i < N_GIVEN; i++) Py_VISIT(state->given[i]);
    return 0;
}

static int module_clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    Py_CLEAR(state->specialization_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->type_died);
    Py_CLEAR(state->clock);
    Py_CLEAR(state->observer);
    for (size_t i = 0; i < N_GIVEN; i++) Py_CLEAR(state->given[i]);
    return 0;
}

static void module_free(void *module) {
    State *state = PyModule_GetState((PyObject *)module);
    module_clear((PyObject *)module);
    for (size_t i = 0; i < N_NAMES; i++) Py_CLEAR(state->names[i]);
    types_free(state);
    walks_free(state);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
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
