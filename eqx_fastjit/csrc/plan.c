/* Builds the result of a trace from the arrays that the compiled function returned.

`_result.py` says what a plan is made of. */

#include "fastjit.h"

/* --- steps ------------------------------------------------------------------------------ */

typedef struct Step Step;
/* Builds a part of the result, and takes its arrays from those that are left. */
typedef PyObject *(*Build)(const Step *step, PyObject *const **arrays);

/* `step_set` bounds how deep steps are, so what walks over them later needs no check. */
struct Step {
    Build build;
    /* Owned: the constant, the keys of a dictionary, the class of a named tuple, what is called,
    or what `step_set_module` reads. */
    PyObject *data;
    /* Of a Module, borrowed from `data`. */
    PyTypeObject *type;
    PyObject *fields, *names, *descriptor;

    Py_ssize_t n;
    Step *parts;
};

static inline PyObject *build(const Step *step, PyObject *const **arrays) {
    return step->build(step, arrays);
}

static PyObject *build_array(const Step *step, PyObject *const **arrays) {
    (void)step;
    return Py_NewRef(*(*arrays)++);
}

static PyObject *build_constant(const Step *step, PyObject *const **arrays) {
    (void)arrays;
    return Py_NewRef(step->data);
}

static PyObject *build_tuple(const Step *step, PyObject *const **arrays) {
    PyObject *out = PyTuple_New(step->n);
    for (Py_ssize_t i = 0; out != NULL && i < step->n; i++) {
        PyObject *part = build(&step->parts[i], arrays);
        if (part == NULL)
            Py_CLEAR(out);
        else
            PyTuple_SET_ITEM(out, i, part);
    }
    return out;
}

static PyObject *build_list(const Step *step, PyObject *const **arrays) {
    PyObject *parts = build_tuple(step, arrays);
    PyObject *out = parts == NULL ? NULL : PySequence_List(parts);
    Py_XDECREF(parts);
    return out;
}

/* Sets the items of a dictionary that is new; takes the reference to it. */
static PyObject *with_items(PyObject *out, PyObject *names, const Step *step,
                            PyObject *const **arrays) {
    for (Py_ssize_t i = 0; out != NULL && i < step->n; i++) {
        PyObject *part = build(&step->parts[i], arrays);
        if (part == NULL || PyDict_SetItem(out, PyTuple_GET_ITEM(names, i), part) < 0)
            Py_CLEAR(out);
        Py_XDECREF(part);
    }
    return out;
}

static PyObject *build_dict(const Step *step, PyObject *const **arrays) {
    return with_items(PyDict_New(), step->data, step, arrays);
}

/* A Module as Equinox builds it: `object.__new__` and a dictionary, copied so that all
instances share their keys. It is set by the descriptor behind `module.__dict__`:
`PyObject_GenericSetDict` leaves an instance of CPython 3.13.0 without attributes. */
static PyObject *build_module(const Step *step, PyObject *const **arrays) {
    PyObject *fields = with_items(PyDict_Copy(step->fields), step->names, step, arrays);
    if (fields == NULL) return NULL;
    PyObject *module = step->type->tp_alloc(step->type, 0);
    if (module != NULL &&
        Py_TYPE(step->descriptor)->tp_descr_set(step->descriptor, module, fields) < 0)
        Py_CLEAR(module);
    Py_DECREF(fields);
    return module;
}

/* A named tuple whose class does nothing more, as its own `_make` does. */
static PyObject *build_named(const Step *step, PyObject *const **arrays) {
    PyObject *parts = build_tuple(step, arrays);
    if (parts == NULL) return NULL;
    PyObject *args = PyTuple_Pack(1, parts), *out = NULL;
    if (args != NULL) out = PyTuple_Type.tp_new((PyTypeObject *)step->data, args, NULL);
    Py_XDECREF(args);
    Py_DECREF(parts);
    return out;
}

static PyObject *build_call(const Step *step, PyObject *const **arrays) {
    PyObject *parts = build_tuple(step, arrays);
    if (parts == NULL) return NULL;
    PyObject *out = PyObject_CallOneArg(step->data, parts);
    Py_DECREF(parts);
    return out;
}

static Build build_called(const char *name) {
    static const struct {
        const char *name;
        Build build;
    } all[] = {
        {"array", build_array}, {"constant", build_constant}, {"tuple", build_tuple},
        {"list", build_list},   {"dict", build_dict},         {"module", build_module},
        {"named", build_named}, {"call", build_call},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (strcmp(all[i].name, name) == 0) return all[i].build;
    return NULL;
}

/* --- a plan ----------------------------------------------------------------------------- */

static void step_clear(Step *step) {
    for (Py_ssize_t i = 0; i < step->n; i++) step_clear(&step->parts[i]);
    PyMem_Free(step->parts);
    step->parts = NULL;
    step->n = 0;
    Py_CLEAR(step->data);
}

/* What `build_module` needs. */
static int step_set_module(Step *step) {
    int is_read = PyArg_ParseTuple(step->data, "O!O!O!O!", &PyType_Type, &step->type,
                                   &PyDict_Type, &step->fields, &PyTuple_Type, &step->names,
                                   &PyGetSetDescr_Type, &step->descriptor);
    return is_read ? 0 : -1;
}

/* Reads a `_result.Step`, and counts its arrays. */
static int step_set(Step *step, PyObject *from, Py_ssize_t *n_arrays) {
    const char *name;
    PyObject *data, *parts;
    if (!PyArg_ParseTuple(from, "sOO!", &name, &data, &PyTuple_Type, &parts)) return -1;

    step->build = build_called(name);
    if (step->build == NULL) {
        PyErr_Format(PyExc_SystemError, "nothing is built by %s", name);
        return -1;
    }
    *n_arrays += step->build == build_array;
    step->data = Py_NewRef(data);
    if (step->build == build_module && step_set_module(step) < 0) return -1;

    Py_ssize_t n = PyTuple_GET_SIZE(parts);
    step->parts = PyMem_Calloc(n, sizeof(Step));
    if (step->parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    step->n = n;
    if (Py_EnterRecursiveCall(" while a result is planned")) return -1;
    int failed = 0;
    for (Py_ssize_t i = 0; i < n && !failed; i++)
        failed = step_set(&step->parts[i], PyTuple_GET_ITEM(parts, i), n_arrays);
    Py_LeaveRecursiveCall();
    return failed;
}

static int step_traverse(const Step *step, visitproc visit, void *arg) {
    Py_VISIT(step->data);
    for (Py_ssize_t i = 0; i < step->n; i++) {
        int stop = step_traverse(&step->parts[i], visit, arg);
        if (stop) return stop;
    }
    return 0;
}

static int plan_traverse(Plan *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    return self->root == NULL ? 0 : step_traverse(self->root, visit, arg);
}

static int plan_clear(Plan *self) {
    Step *root = self->root;
    self->root = NULL;
    self->n_arrays = 0;
    if (root != NULL) step_clear(root);
    PyMem_Free(root);
    return 0;
}

static void plan_dealloc(Plan *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL) PyObject_ClearWeakRefs((PyObject *)self);
    plan_clear(self);
    type->tp_free((PyObject *)self);
    Py_DECREF(type);
}

/* `Plan(root, structure)`, of which the structure is for the reference. */
static PyObject *plan_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    (void)kwargs;
    PyObject *root, *structure;
    if (!PyArg_ParseTuple(args, "OO", &root, &structure)) return NULL;

    Plan *self = (Plan *)type->tp_alloc(type, 0);
    if (self == NULL) return NULL;
    self->root = PyMem_Calloc(1, sizeof(Step));
    if (self->root == NULL)
        PyErr_NoMemory();
    else if (step_set(self->root, root, &self->n_arrays) == 0)
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

/* The result, from as many arrays as it has. */
PyObject *plan_build(const Plan *self, PyObject *const *arrays) {
    return build(self->root, &arrays);
}

static PyObject *plan_build_method(Plan *self, PyObject *arrays) {
    PyObject *held = PySequence_Tuple(arrays), *out = NULL;
    if (held == NULL) return NULL;
    if (self->root == NULL || PyTuple_GET_SIZE(held) != self->n_arrays)
        PyErr_Format(PyExc_TypeError, "expected %zd arrays", self->n_arrays);
    else
        out = plan_build(self, PySequence_Fast_ITEMS(held));
    Py_DECREF(held);
    return out;
}

static PyMemberDef plan_members[] = {
    {"blocks", T_INT, offsetof(Plan, blocks), 0, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Plan, weakrefs), READONLY, NULL},
    {NULL}};

static PyMethodDef plan_methods[] = {
    {"build", (PyCFunction)plan_build_method, METH_O, "The result, from its arrays."},
    {NULL}};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc, "How to build the result of one trace."},
    {Py_tp_new, plan_new},
    {Py_tp_dealloc, plan_dealloc},
    {Py_tp_traverse, plan_traverse},
    {Py_tp_clear, plan_clear},
    {Py_tp_members, plan_members},
    {Py_tp_methods, plan_methods},
    {0, NULL}};

PyType_Spec plan_spec = {"eqx_fastjit._native.Plan", sizeof(Plan), 0,
                         Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, plan_slots};
