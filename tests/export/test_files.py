"""Exported files that are damaged, of another version, or from somebody else.

Promises 25, 26 of docs/reliability.md.
"""

import json
import random
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import _private, filter_jit, load
from eqx_fastjit._export import _format, _private as _export_private, show
from tests.export import functions


pytest.importorskip("flatbuffers", reason="`save` needs it")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file that contains statics of every kind, and both forms."""
    path = tmp_path_factory.mktemp("files") / "statics.fastjit"
    f = filter_jit(functions.statics)
    f.export(functions.layer(), functions.x()).save(path, compiled=True)
    return path


def rewritten(made, path, change=None, **sections):
    """A copy of a file with another header or other sections, and a valid checksum."""
    header, found = _format.read(made)
    found = {k: bytes(x) for k, x in {**found, **sections}.items() if x is not None}
    del header["sections"]
    if change is not None:
        change(header)
    with open(path, "wb") as file:
        _format.write(file, header, found)
    return path


def load_and_call(path, **kwargs):
    return load(path, allow=("tests",), **kwargs)(functions.layer(), functions.x())


# --- damage ---------------------------------------------------------------------------


def test_a_thousand_damaged_files_end_in_one_error(made, tmp_path):
    """Bits are flipped, and files are cut or grow."""
    contents, rng = made.read_bytes(), random.Random(0)
    path = tmp_path / "damaged.fastjit"
    for i in range(1000):
        changed = bytearray(contents)
        place = rng.randrange(100 if i % 2 else len(contents))
        if i % 5 == 0:
            del changed[place:]
        elif i % 5 == 1:
            changed += bytes([i % 256])
        else:
            changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        for read in (load, show):
            with pytest.raises(ValueError, match=r"damaged.fastjit' cannot be loaded"):
                read(path)


def _mutate(value, rng):
    """Replace one value in a header by something else."""
    places = []

    def collect(x):
        for key in x if isinstance(x, dict) else range(len(x)):
            places.append((x, key))
            if isinstance(x[key], dict | list):
                collect(x[key])

    collect(value)
    container, key = rng.choice(places)
    others = [None, -1, 10**30, "x", [], {}, ["x", "tuple", None, 5], True, 1.5]
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice([*others, "os:system"])


def test_nonsense_with_a_valid_checksum_is_one_error(made, tmp_path):
    rng, refused = random.Random(1), 0
    path = tmp_path / "nonsense.fastjit"
    for _ in range(300):
        rewritten(made, path, lambda header: _mutate(header, rng), compiled=None)
        for read in (lambda: load(path, allow=("tests",)), lambda: show(path)):
            try:
                read()
            except ValueError as e:
                assert "cannot be loaded" in str(e)
                refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("result", [["", "tuple", None, 10**12]]),
        ("result", [[str(i), "list", None, 1] for i in range(100_000)]),
        ("result", [["", "array", 10**9, 0]] * 3),
        ("result", [["", "no kind", "numpy:ndarray", 0]]),
        ("weak_types", []),
        ("parameters", [["x", "VAR_POSITIONAL", False, False, []]]),
        ("parameters", [["not a name", "VAR_POSITIONAL", False, False, []]]),
        ("sections", {"portable": -1}),
        ("mesh", {"devices": [10**9]}),
    ],
)
def test_sizes_in_a_header_are_bounded(made, tmp_path, key, value):
    path = tmp_path / "f"
    path.write_bytes(_with_header(made, {key: value}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path, allow=("tests",))


def _with_header(path, changed):
    """The bytes of a file whose header `write` would not write."""
    header, sections = _format.read(path)
    text = json.dumps({**header, **changed}).encode()
    data = b"".join([text, *sections.values()])
    digest = _format.hashlib.sha256(data).digest()
    return _format.PREFIX.pack(_format.MAGIC, _format.VERSION, len(text), digest) + data


def test_what_is_no_file_of_this_version(made, tmp_path):
    later = bytearray(made.read_bytes())
    later[8] = 99
    for contents, message in (
        (later, r"version 99; .* reads version 2"),
        (b"hello " * 100, r"not written by `Exported.save`"),
    ):
        (tmp_path / "f").write_bytes(contents)
        with pytest.raises(ValueError, match=message):
            load(tmp_path / "f")
    with pytest.raises(FileNotFoundError, match="none"):
        load(tmp_path / "none")


def test_a_file_is_there_as_a_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"before")
    exported = filter_jit(lambda x: x + 1).export(jnp.ones(()))

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(_format, "write", fail)
    with pytest.raises(OSError, match="disk full"):
        exported.save(path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def test_nothing_in_a_file_is_a_pickle(made):
    """No opcode of it runs: reading imports neither pickle nor what a file names."""
    header, sections = _format.read(made)
    assert set(sections) == {"portable", "compiled"}
    assert isinstance(header, dict)
    folder = Path(_format.__file__).parent
    assert not any("import pickle" in x.read_text() for x in folder.glob("*.py"))


# --- names ----------------------------------------------------------------------------


def test_classes_of_the_result_must_be_allowed(made):
    for allow in ((), ("test", "tests.export.function")):
        with pytest.raises(ValueError, match=r"it needs tests\.export\.functions:\w+"):
            load(made, allow=allow)
    for kwargs in ({"allow": "tests"}, {"allow": ("tests.export.functions",)}):
        load(made, **kwargs)


def test_an_example_shows_the_classes(made):
    statics = (functions.Config(1.0), functions.Pair(1, functions.Node(1, "")))
    load(made, example=(functions.layer(), functions.x(), statics))
    with pytest.raises(ValueError, match=r"pass `allow='tests'`; or pass `example="):
        load(made, example=(functions.x(), statics))
    with pytest.raises(TypeError, match="expected a tuple, got ArrayImpl"):
        load(made, example=functions.x())


@pytest.mark.parametrize(
    "name",
    [
        *("os:system", "builtins:eval", "numpy:os.system", "numpy:ctypeslib"),
        *("jax:sys.exit", "jax._src.config:os", "equinox:ft.partial", "this:s"),
        "equinox:Module.__init_subclass__.__globals__",
        "jax.example_libraries.optimizers:sgd",  # exists, and is not imported yet
        *("jax.numpy:__builtins__", "tests.support.programs:ROOT", ":", "", "numpy:"),
    ],
)
def test_other_names_are_refused(made, tmp_path, name):
    sys.modules.pop("this", None)

    def change(header):
        (line,) = [x for x in header["result"] if x[2] == "jax.nn:relu"]
        line[2] = name

    path = rewritten(made, tmp_path / "f", change)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path, allow=("tests.export.functions",))
    assert "this" not in sys.modules


def test_nothing_of_a_class_runs(tmp_path):
    class Trap:
        def __init__(self):
            raise AssertionError("ran")

    path = tmp_path / "f"
    f = filter_jit(lambda layer, x: layer)
    f.export(functions.layer(), functions.x()).save(path)

    def change(header):
        header["result"][0][2][0] = "tests.export.functions:Trap"

    functions.Trap, Trap.__module__ = Trap, functions.__name__
    try:
        with pytest.raises(ValueError, match="not a Module or a dataclass"):
            load(rewritten(path, path, change), allow=("tests",))
    finally:
        del functions.Trap


def test_what_only_the_arguments_name_is_not_imported(tmp_path):
    f = filter_jit(lambda config, x: x + config.scale)
    f.export(functions.Config(2.0), functions.x()).save(tmp_path / "f")
    loaded = load(tmp_path / "f")
    assert float(loaded(functions.Config(2.0), functions.x())[0, 0]) == 2


# --- forms ----------------------------------------------------------------------------


def test_native_code_needs_trust(made, tmp_path, monkeypatch):
    from eqx_fastjit._export import _native

    def never(*_, **__):
        raise AssertionError("native code was loaded")

    monkeypatch.setattr(_native, "load_executable", never)
    load_and_call(made)
    with pytest.raises(ValueError, match="native code was loaded"):
        load(made, allow=("tests",), trusted=True)


def _made_for_another(header):
    header["made_for"] = "something else"


@pytest.mark.parametrize(
    ("rewriting", "message"),
    [
        ({"change": _made_for_another}, "of statics is not used: .* this is jax "),
        ({"compiled": b"\0" * 1000}, "not used: JAX .* cannot load it"),
        ({}, "not used: JAX .*UnloadedMeshExecutable"),  # a private name is missing
    ],
)
def test_native_code_that_does_not_fit_is_not_used(
    made, tmp_path, monkeypatch, rewriting, message
):
    def resolve(path):
        raise AttributeError(path)

    if not rewriting:
        monkeypatch.setattr(_private, "resolve", resolve)
    path = rewritten(made, tmp_path / "f", **rewriting)
    with pytest.warns(UserWarning, match=message):
        load_and_call(path, trusted=True)
    load_and_call(path)


def test_a_program_that_is_damaged_is_one_error(made, tmp_path):
    path = rewritten(made, tmp_path / "f", portable=b"\0" * 1000)
    with pytest.raises(ValueError, match=r"cannot be loaded: JAX .* cannot read"):
        load(path, allow=("tests",))


def test_calls_of_native_functions_are_refused(tmp_path):
    name = "a_strange_function"
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    exported = jax.export.export(
        jax.jit(lambda x: [jax.ffi.ffi_call(name, scalar)(x)]),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name)],
    )(jnp.ones(()))
    path = tmp_path / "f"
    filter_jit(lambda x: x + 1).export(jnp.ones(())).save(path)
    rewritten(path, path, portable=bytes(exported.serialize()))
    with pytest.raises(ValueError, match="it calls a_strange_function"):
        load(path)
    load(path, trusted=True)
    # Custom calls of JAX itself need no trust.
    filter_jit(lambda x: jnp.linalg.qr(x)[1]).export(jnp.eye(3)).save(path)
    load(path)(jnp.eye(3))


def test_kernels_are_no_part_of_jax():
    stable = _export_private.stable_custom_calls()
    assert stable and "tpu_custom_call" not in stable


def test_too_few_devices_are_an_error(tmp_path):
    tests = functions.sharded_functions()["committed"]
    path = tmp_path / "f"
    functions.filter_jit(tests).export(*tests.arguments()).save(path)

    def change(header):
        header["mesh"]["devices"] = list(range(8, 16))

    with pytest.raises(ValueError, match=r"it needs devices .* of \[0, "):
        load(rewritten(path, path, change))
