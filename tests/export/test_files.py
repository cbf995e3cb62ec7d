"""Exported files that are damaged, of another version, or from somebody else.

The tests read and write the format themselves, by what `_export/_format.py` says of it.
"""

import hashlib
import json
import random
import struct
import sys

import jax
import jax.numpy as jnp
import pytest

from eqx_fastjit import cli, filter_jit, load
from tests.export import functions


pytest.importorskip("flatbuffers", reason="`save` needs it")

MAGIC = b"\x93EQXJIT\n"
# Magic, version of the format, size of the header, checksum.
PREFIX = struct.Struct("<8sII32s")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file that contains statics of every kind, and both forms."""
    path = tmp_path_factory.mktemp("files") / "statics.fastjit"
    f = filter_jit(functions.statics)
    f.export(functions.layer(), functions.x()).save(path, compiled=True)
    return path


def read(path):
    """The header of a file, and its sections."""
    contents = path.read_bytes()
    _, _, size, _ = PREFIX.unpack_from(contents)
    end = PREFIX.size + size
    header = json.loads(contents[PREFIX.size : end])

    sections = {}
    for name, size in header["sections"].items():
        sections[name] = contents[end : end + size]
        end += size
    return header, sections


def write(path, header, sections):
    """Write a file that is whole, whatever its header says."""
    text = json.dumps(header).encode()
    data = b"".join([text, *sections.values()])
    prefix = PREFIX.pack(MAGIC, 2, len(text), hashlib.sha256(data).digest())
    path.write_bytes(prefix + data)


def rewritten(made, path, change=None, **replaced):
    """A copy of a file with another header or other sections, or without one."""
    header, sections = read(made)
    for name, section in {**sections, **replaced}.items():
        sections[name] = section
        if section is None:
            del sections[name]
    header["sections"] = {name: len(section) for name, section in sections.items()}
    if change is not None:
        change(header)
    write(path, header, sections)
    return path


def load_and_call(path, **kwargs):
    return load(path, allow=("tests",), **kwargs)(functions.layer(), functions.x())


def assert_refused(path, capsys, why=""):
    """By `load`, and by the command `show`, which exits with 2."""
    message = f"{path.name}' cannot be loaded{why}"
    with pytest.raises(ValueError, match=message):
        load(path, allow=("tests",))
    assert cli.main(["show", str(path)]) == 2
    assert message in capsys.readouterr().err


# --- damage ---------------------------------------------------------------------------


def test_a_thousand_damaged_files_end_in_one_error(made, tmp_path, capsys):
    """Bits are flipped, and files are cut or grow."""
    contents, rng = made.read_bytes(), random.Random(0)
    path = tmp_path / "damaged.fastjit"
    for i in range(1000):
        changed = bytearray(contents)
        place = rng.randrange(100 if i % 2 else len(contents))
        if i % 5 == 0:
            del changed[place:]
        elif i % 5 == 1:
            changed.append(i % 256)
        else:
            changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        assert_refused(path, capsys)


def _places(value):
    """Each place in a header that has a value: its container, and its key."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in keys:
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


_NONSENSE = [
    *(None, -1, 10**30, "x", [], {}, True, 1.5, "os:system"),
    ["x", "tuple", None, 5],
]


def _mutate(header, rng):
    """Remove one value of a header, or replace it by something else."""
    container, key = rng.choice(list(_places(header)))
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(_NONSENSE)


def test_nonsense_with_a_valid_checksum_is_one_error(made, tmp_path, capsys):
    rng, n_refused = random.Random(1), 0
    path = tmp_path / "nonsense.fastjit"
    for _ in range(300):
        rewritten(made, path, lambda header: _mutate(header, rng), compiled=None)
        try:
            load(path, allow=("tests",))
        except ValueError as e:
            assert "cannot be loaded" in str(e)
            n_refused += 1
        if cli.main(["show", str(path)]) != 0:
            assert "cannot be loaded" in capsys.readouterr().err
    assert n_refused > 50


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
def test_a_header_that_does_not_fit_is_one_error(made, tmp_path, key, value):
    header, sections = read(made)
    path = tmp_path / "f"
    write(path, {**header, key: value}, sections)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path, allow=("tests",))


def test_show_prints_no_control_characters(made, tmp_path, capsys):
    def change(header):
        header["name"] = "naïve\x1b[2J\u202e\ud800"

    path = rewritten(made, tmp_path / "f", change)
    assert cli.main(["show", str(path)]) == 0
    assert "f: naïve?[2J??, made by" in capsys.readouterr().out


def test_what_is_no_file_of_this_version(made, tmp_path):
    later = bytearray(made.read_bytes())
    later[len(MAGIC)] = 99
    for contents, message in (
        (later, r"version 99; .* reads version 2"),
        (b"hello " * 100, r"not written by `Exported.save`"),
        (b"", r"not written by `Exported.save`"),
        (MAGIC, r"it is damaged"),
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

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        exported.save(path)
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_no_pickle_is_read(made, monkeypatch):
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(f"pickle.{name}", None)
    load_and_call(made, trusted=True)


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
        *("numpy:savetxt", "jax.numpy:load", "jax.numpy:save", "jax.numpy:savez"),
    ],
)
def test_other_names_are_refused(made, tmp_path, name):
    sys.modules.pop("this", None)

    def change(header):
        (line,) = [x for x in header["result"] if x[2] == "jax.nn:relu"]
        line[2] = name

    path = rewritten(made, tmp_path / "f", change)
    with pytest.raises(ValueError, match="cannot be loaded: it needs"):
        load(path, allow=("tests.export.functions",))
    assert "this" not in sys.modules


def test_an_allowed_package_that_is_not_here_is_one_error(made, tmp_path):
    def change(header):
        header["result"][0][1:3] = "name", "no_such_package:f"

    path = rewritten(made, tmp_path / "f", change)
    with pytest.raises(ValueError, match=r"needs what is not here .*no_such_package"):
        load(path, allow=("tests", "no_such_package"))


def test_nothing_of_a_class_runs(tmp_path, monkeypatch):
    class Trap(functions.Layer):
        def __init__(self):
            raise AssertionError("ran")

    class Other:
        __init__ = Trap.__init__

    path = tmp_path / "f"
    f = filter_jit(lambda layer, x: layer)
    f.export(functions.layer(), functions.x()).save(path)

    def change(header):
        header["result"][0][2][0] = "tests.export.functions:Trap"

    Trap.__module__ = functions.__name__
    monkeypatch.setattr(functions, "Trap", Trap, raising=False)
    f = load(rewritten(path, path, change), allow=("tests",))
    assert type(f(functions.layer(), functions.x())) is Trap

    monkeypatch.setattr(functions, "Trap", Other)
    with pytest.raises(ValueError, match="dataclass"):
        load(path, allow=("tests",))


@pytest.mark.parametrize(
    "line",
    [
        ["instance", ["equinox.nn:Identity", "__class__"]],
        ["node", "jax._src.state.indexing:NDIndexer"],
    ],
)
def test_only_containers_are_built(made, tmp_path, line):
    def change(header):
        header["result"][:] = [["", *line, 1], ["", "int", 1, 0]]

    with pytest.raises(ValueError, match=r"has no fields|may call anything"):
        load(rewritten(made, tmp_path / "f", change), allow=("tests",))


def test_what_only_the_arguments_name_is_not_imported(tmp_path):
    f = filter_jit(lambda config, x: x + config.scale)
    f.export(functions.Config(2.0), functions.x()).save(tmp_path / "f")
    loaded = load(tmp_path / "f")
    assert float(loaded(functions.Config(2.0), functions.x())[0, 0]) == 2


# --- forms ----------------------------------------------------------------------------


def test_native_code_needs_trust(made, tmp_path):
    """Without it, nothing looks at the code."""
    path = rewritten(made, tmp_path / "f", compiled=b"\0" * 1000)
    load_and_call(path)
    with pytest.warns(UserWarning, match="not used: JAX .* cannot load it"):
        load_and_call(path, trusted=True)


def test_native_code_for_another_machine_is_not_used(made, tmp_path):
    def change(header):
        header["made_for"] = "something else"

    path = rewritten(made, tmp_path / "f", change)
    message = "of statics is not used: it is for something else, and this is jax "
    with pytest.warns(UserWarning, match=message):
        load_and_call(path, trusted=True)


def test_without_a_private_name_of_jax_native_code_is_not_used(made, monkeypatch):
    def missing(path):
        raise AttributeError(path)

    monkeypatch.setattr("eqx_fastjit._private.resolve", missing)
    with pytest.warns(UserWarning, match="not used: JAX .*UnloadedMeshExecutable"):
        load_and_call(made, trusted=True)


def test_whatever_loading_native_code_raises_it_is_not_used(made, monkeypatch):
    """Also an exception without a text."""

    def fail(*args):
        raise NotImplementedError

    monkeypatch.setattr("eqx_fastjit._export._native.load_executable", fail)
    with pytest.warns(UserWarning, match="cannot load it .*NotImplementedError"):
        load_and_call(made, trusted=True)


def test_a_program_that_is_damaged_is_one_error(made, tmp_path, capsys):
    path = rewritten(made, tmp_path / "f", portable=b"\0" * 1000)
    assert_refused(path, capsys, why=": it is damaged, was made by another JAX")


@pytest.mark.parametrize("name", ["a_strange_function", "tpu_custom_call"])
def test_calls_of_native_functions_are_refused(name, tmp_path):
    """Also of kernels, which JAX guarantees to be stable."""
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    exported = jax.export.export(
        jax.jit(lambda x: [jax.ffi.ffi_call(name, scalar)(x)]),
        disabled_checks=[jax.export.DisabledSafetyCheck.custom_call(name)],
    )(jnp.ones(()))
    path = tmp_path / "f"
    filter_jit(lambda x: x + 1).export(jnp.ones(())).save(path)

    def change(header):
        header["vjp_order"] = -1

    rewritten(path, path, change, portable=bytes(exported.serialize()))
    with pytest.raises(ValueError, match=f"it calls {name}"):
        load(path)
    load(path, trusted=True)


def test_without_a_private_name_of_jax_custom_calls_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "f"
    filter_jit(functions.linalg).export(functions.x()).save(path)
    load(path)

    monkeypatch.setattr(
        "eqx_fastjit._private.try_resolve", lambda path, default: default
    )
    with pytest.raises(ValueError, match="it calls lapack_"):
        load(path)
    load(path, trusted=True)


def test_too_few_devices_are_an_error(tmp_path):
    tests = functions.sharded_functions()["committed"]
    path = tmp_path / "f"
    functions.filter_jit(tests).export(*tests.arguments()).save(path)

    def change(header):
        header["mesh"]["devices"] = list(range(8, 16))

    with pytest.raises(ValueError, match=r"it needs devices .* of \[0, "):
        load(rewritten(path, path, change))
