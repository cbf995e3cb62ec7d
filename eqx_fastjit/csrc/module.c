/* The module `eqx_fastjit._native`, and what Python sets up once (`_engine.py`). */

#include "fastjit.h"

/* Every name in the state, with its text. */
static int state_intern(State *state) {
    const struct {
        PyObject **name;
        const char *text;
    } names[] = {
        {&state->s_failed, "failed"},   {&state->s_finished, "finished"},
        {&state->s_bind, "_bind"},      {&state->s_specialize, "specialize"},
        {&state->s_nbytes, "nbytes"},   {&state->s_copy, "copy"},
    };
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if ((*names[i].name = PyUnicode_InternFromString(names[i].text)) == NULL) return -1;
    return 0;
}

static int module_exec(PyObject *module) {
    State *state = PyModule_GetState(module);
    state->module = module;
    const struct {
        PyTypeObject **type;
        PyType_Spec *spec;
    } types[] = {
        {&state->callable_type, &callable_spec},
        {&state->table_type, &table_spec},
        {&state->specialization_type, &specialization_spec},
        {&state->plan_type, &plan_spec},
        {&state->handle_type, &handle_spec},
    };
    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        *types[i].type = (PyTypeObject *)type;
        if (type == NULL || PyModule_AddType(module, (PyTypeObject *)type) < 0) return -1;
    }
    if (PyModule_AddFunctions(module, call_functions) < 0 ||
        PyModule_AddFunctions(module, plan_functions) < 0)
        return -1;
    return state_intern(state);
}

/* `setup(reader_of, flatten_one_level, tree_leaves, block, copied_bytes)` */
static PyObject *setup(PyObject *module, PyObject *args) {
    State *state = PyModule_GetState(module);
    PyObject *reader_of, *flatten_one_level, *tree_leaves, *block, *copied_bytes;
    if (!PyArg_ParseTuple(args, "OOOOO!", &reader_of, &flatten_one_level, &tree_leaves, &block,
                          &PyLong_Type, &copied_bytes))
        return NULL;
    Py_XSETREF(state->reader_of, Py_NewRef(reader_of));
    Py_XSETREF(state->flatten_one_level, Py_NewRef(flatten_one_level));
    Py_XSETREF(state->tree_leaves, Py_NewRef(tree_leaves));
    Py_XSETREF(state->block, Py_NewRef(block));
    Py_XSETREF(state->copied_bytes, Py_NewRef(copied_bytes));
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"setup", setup, METH_VARARGS, "What the engine needs of Python."}, {NULL}};

static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = PyModule_GetState(module);
    if (state == NULL) return 0;
    Py_VISIT(state->callable_type);
    Py_VISIT(state->table_type);
    Py_VISIT(state->specialization_type);
    Py_VISIT(state->plan_type);
    Py_VISIT(state->handle_type);
    Py_VISIT(state->reader_of);
    Py_VISIT(state->flatten_one_level);
    Py_VISIT(state->tree_leaves);
    Py_VISIT(state->block);
    return 0;
}

static int module_clear(PyObject *module) {
    State *state = PyModule_GetState(module);
    if (state == NULL) return 0;
    Py_CLEAR(state->callable_type);
    Py_CLEAR(state->table_type);
    Py_CLEAR(state->specialization_type);
    Py_CLEAR(state->plan_type);
    Py_CLEAR(state->handle_type);
    Py_CLEAR(state->reader_of);
    Py_CLEAR(state->flatten_one_level);
    Py_CLEAR(state->tree_leaves);
    Py_CLEAR(state->block);
    return 0;
}

static void module_free(void *module) {
    State *state = PyModule_GetState((PyObject *)module);
    if (state == NULL) return;
    module_clear((PyObject *)module);
    Py_CLEAR(state->copied_bytes);
    PyObject **names[] = {&state->s_failed, &state->s_finished, &state->s_bind,
                          &state->s_specialize, &state->s_nbytes, &state->s_copy};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) Py_CLEAR(*names[i]);
    types_free(&state->types);
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
