"""Exported files that are damaged, of another version, or from an untrusted source."""

import dataclasses
import hashlib
import json
import random
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqx_fastjit import _compat, filter_jit, load
from eqx_fastjit._export import _format, _runners
from eqx_fastjit._export._show import show

from . import exported_functions as functions


pytest.importorskip("flatbuffers", reason="the portable form needs it")


pytestmark = pytest.mark.one_engine


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file that contains statics of every kind, and both payloads."""
    path = tmp_path_factory.mktemp("files") / "statics.fastjit"
    f = filter_jit(functions.statics)
    f.export(functions.layer(), functions.x()).save(path, compiled=True)
    return path


def rewritten(made, path, change=None, **sections):
    """A copy of a file with another header or other sections, and valid checksums."""
    reader = _format.Reader(made)
    header = json.loads(json.dumps(reader.header))
    found = {name: reader.section(name) for name in reader.sections} | sections
    if change is not None:
        change(header)
    kept = {name: x for name, x in found.items() if x is not None}
    _format.write(path, header, kept)
    return path


def load_and_call(path, **kwargs):
    return load(path, allow=("tests",), **kwargs)(functions.layer(), functions.x())


def test_the_copy_of_a_file_is_that_file(made, tmp_path):
    assert rewritten(made, tmp_path / "x").read_bytes() == made.read_bytes()
    for trusted in (False, True):
        load_and_call(made, trusted=trusted)


@pytest.mark.parametrize("size", [0, 5, 30, 47, 48, 500, -1])
def test_truncated(made, tmp_path, size):
    path = tmp_path / "short.fastjit"
    path.write_bytes(made.read_bytes()[:size])
    for read in (load, show):
        with pytest.raises(ValueError, match=r"short.fastjit' cannot be loaded"):
            read(path)


def test_longer(made, tmp_path):
    path = tmp_path / "long.fastjit"
    path.write_bytes(made.read_bytes() + b"\0")
    with pytest.raises(ValueError, match="truncated or damaged"):
        load(path)


def test_each_damaged_byte_is_noticed(made, tmp_path):
    contents = made.read_bytes()
    rng = random.Random(0)
    path = tmp_path / "damaged.fastjit"
    places = [*range(48), *[rng.randrange(48, len(contents)) for _ in range(100)]]
    for place in places:
        changed = bytearray(contents)
        changed[place] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="cannot be loaded"):
            show(path)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "small.fastjit"
    filter_jit(lambda x: x + 1).export(jnp.ones(())).save(path)
    return path


def test_each_flipped_bit_and_each_length(small, tmp_path):
    """Exhaustive on a small file, where the test above samples positions at random."""
    contents = small.read_bytes()
    path = tmp_path / "damaged.fastjit"
    flipped = (
        contents[:i] + bytes([contents[i] ^ 1 << i % 8]) + contents[i + 1 :]
        for i in range(len(contents))
    )
    for changed in (*flipped, *[contents[:n] for n in range(len(contents))]):
        path.write_bytes(changed)
        with pytest.raises(ValueError, match="cannot be loaded"):
            show(path)


@pytest.mark.parametrize(
    "old, new",
    [
        # A name that occurs twice, in the header and in the table of sections.
        (b'"size": ', b'"size": 0, "size": '),
        (b'"name": "arrays"', b'"name": "portable"'),
        (b'"arguments": [', b'"arguments": [' + b"[" * 100_000),
        (b'"arguments": [', b'"arguments": [["tuple", 1000000000000], '),
        (b'"outputs": [', b'"outputs": [{"shape": [1e400]}, '),
        (
            b'"kept": []',
            b'"kept": [{"shape": [99999999999999999999], "dtype": "int8"}]',
        ),
        (b'"kept": []', b'"kept": [{"shape": [-1], "dtype": "object"}]'),
        (b'"names": []', b'"names": ["os:system"]'),
    ],
)
def test_a_header_by_hand(small, tmp_path, old, new):
    """Invalid headers whose checksum is right."""
    contents = small.read_bytes()
    size = _format._PREFIX.unpack(contents[: _format._PREFIX.size])[2]
    start = _format._PREFIX.size
    header, rest = contents[start : start + size], contents[start + size :]
    assert old in header
    header = header.replace(old, new, 1)
    prefix = _format._PREFIX.pack(
        _format.MAGIC, _format.VERSION, len(header), hashlib.sha256(header).digest()
    )
    path = tmp_path / "by_hand.fastjit"
    path.write_bytes(prefix + header + rest)
    if new == b'"size": 0, "size": ':  # JSON keeps the last of two equal names
        load(path)
        return
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path)(jnp.ones(()))


def test_another_version(made, tmp_path):
    path = tmp_path / "later.fastjit"
    contents = bytearray(made.read_bytes())
    contents[8] = 99
    path.write_bytes(contents)
    with pytest.raises(
        ValueError, match="version 99; this eqx_fastjit reads version 1"
    ):
        load(path)


def test_what_is_no_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="none"):
        load(tmp_path / "none")
    (tmp_path / "text").write_text("hello " * 100)
    with pytest.raises(ValueError, match=r"not written by `Exported.save`"):
        load(tmp_path / "text")


def test_a_huge_header_is_not_read(tmp_path):
    path = tmp_path / "huge.fastjit"
    prefix = _format._PREFIX.pack(_format.MAGIC, _format.VERSION, 2**32 - 1, b"")
    path.write_bytes(prefix + b"{}")
    with pytest.raises(ValueError, match="header"):
        load(path)


def _mutate(value, rng):
    """Replace one value in a header by something else."""
    pending = []

    def collect(x):
        if isinstance(x, dict | list):
            keys = list(x) if isinstance(x, dict) else range(len(x))
            for key in keys:
                pending.append((x, key))
                collect(x[key])

    collect(value)
    container, key = rng.choice(pending)
    others = [None, -1, 10**30, "x", [], {}, ["tuple", 5], True, 1.5, "os:system"]
    if rng.random() < 0.2:
        del container[key]
    else:
        container[key] = rng.choice(others)


def test_nonsense_is_one_error(made, tmp_path):
    rng = random.Random(1)
    path = tmp_path / "nonsense.fastjit"
    refused = 0
    for _ in range(300):
        rewritten(made, path, lambda header: _mutate(header, rng))
        for read in (lambda: load(path, allow=("tests",)), lambda: show(path)):
            try:
                read()
            except ValueError as e:
                assert "cannot be loaded" in str(e)
                refused += 1
    assert refused > 200


# --- names ---


def test_classes_must_be_allowed(made):
    with pytest.raises(
        ValueError, match=r"it needs tests\.exported_functions:\w+, .*a"
    ):
        load(made)
    with pytest.raises(ValueError, match=r"allow=\('tests',\)"):
        load(made, allow=("test", "tests.exported_function"))
    for kwargs in (
        {"allow": ("tests",)},
        {"allow": "tests.exported_functions"},
        {"allow": ("tests",), "example": ()},
    ):
        load(made, **kwargs)


def test_an_example_shows_the_classes(tmp_path):
    f = filter_jit(lambda layer, x: layer(x))
    layer, x = functions.layer(), functions.x()
    f.export(layer, x).save(tmp_path / "f")
    loaded = load(tmp_path / "f", example=(layer, x))
    np.testing.assert_allclose(loaded(layer, x), f(layer, x))
    with pytest.raises(ValueError, match=r"Layer, .*:Config, .*:Mode, w"):
        load(tmp_path / "f", example=(x,))
    with pytest.raises(ValueError, match=r"functions:Layer, which .*allow=\('tests',"):
        load(tmp_path / "f", example=((functions.Config(1.0), functions.Mode.FAST), x))


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "builtins:eval",
        "builtins:exec",
        "numpy:os.system",
        "numpy:ctypeslib",
        "jax:sys.exit",
        "jax._src.config:os",
        "equinox:ft.partial",
        "equinox:Module.__init_subclass__.__globals__",
        "jax.numpy:__builtins__",
        "this:s",
        "tests.planted.churn:x",
        ":",
        "",
        "numpy:",
    ],
)
def test_other_names_are_refused(made, tmp_path, name):
    sys.modules.pop("this", None)

    def change(header):
        header["names"][header["names"].index("jax.nn:relu")] = name

    path = rewritten(made, tmp_path / "f", change)
    with pytest.raises(ValueError, match="cannot be loaded"):
        load(path, allow=("tests.exported_functions",))
    assert "this" not in sys.modules


def test_nothing_of_a_class_runs(tmp_path):
    class Trap:
        def __init__(self):
            raise AssertionError("ran")

    path = tmp_path / "f"
    f = filter_jit(lambda layer, x: layer(x))
    f.export(functions.layer(), functions.x()).save(path)

    def change(header):
        number = header["names"].index("tests.exported_functions:Layer")
        header["names"][number] = "tests.exported_functions:Trap"

    functions.Trap = Trap
    try:
        with pytest.raises(ValueError, match="not a Module or a dataclass"):
            load(rewritten(path, path, change), allow=("tests",))
    finally:
        del functions.Trap


# --- payloads ---


def test_native_code_needs_trust(made, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("native code was loaded")

    monkeypatch.setattr(_compat, "load_executable", never)
    load_and_call(made)
    alone = rewritten(made, tmp_path / "f", portable=None)
    with pytest.raises(ValueError, match="pass `trusted=True`"):
        load(alone, allow=("tests",))
    with pytest.raises(ValueError, match="native code was loaded"):
        load(alone, allow=("tests",), trusted=True)


@pytest.mark.parametrize(
    "name", ["jax", "jaxlib", "platform", "device", "runtime", "processor"]
)
def test_native_code_for_something_else_is_not_used(made, tmp_path, name):
    def change(header):
        header["compiled"]["fits"][name] = "other"

    path = rewritten(made, tmp_path / "f", change)
    with pytest.warns(UserWarning, match=f"not used: it was compiled for {name}"):
        load_and_call(path, trusted=True)
    load_and_call(path)
    alone = rewritten(path, path, portable=None)
    with pytest.raises(ValueError, match="no portable form"):
        load(alone, allow=("tests",), trusted=True)


def test_native_code_that_is_damaged_is_not_used(made, tmp_path):
    path = rewritten(made, tmp_path / "f", compiled=b"\0" * 1000)
    with pytest.warns(UserWarning, match="not used: jaxlib cannot load it"):
        load_and_call(path, trusted=True)


@pytest.mark.parametrize(
    "name",
    ["jax._src.interpreters.pxla:UnloadedMeshExecutable", "jaxlib._jax:DeviceList"],
)
def test_without_a_private_name_native_code_is_not_used(made, take_away, name):
    take_away(name)
    with pytest.warns(UserWarning, match="not used: JAX"):
        load_and_call(made, trusted=True)


def test_a_flipped_bit_in_native_code_is_damage(made, tmp_path):
    reader = _format.Reader(made)
    offset, size, _ = reader.sections["compiled"]
    data = bytearray(made.read_bytes())
    data[offset + size // 2] ^= 1
    (tmp_path / "f").write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged \(section 'compiled'\)"):
        load_and_call(tmp_path / "f", trusted=True)


def test_a_portable_program_that_is_damaged(made, tmp_path):
    path = rewritten(made, tmp_path / "f", portable=b"\0" * 1000)
    with pytest.raises(ValueError, match=r"cannot be loaded: JAX .* cannot read"):
        load(path, allow=("tests",))


def test_calls_of_native_functions_are_refused(made, tmp_path):
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
    assert _compat.stable_custom_calls() - _runners._KERNELS
    assert "tpu_custom_call" not in _compat.stable_custom_calls() - _runners._KERNELS


def test_a_file_is_there_as_a_whole_or_not_at_all(made, tmp_path, monkeypatch):
    path = tmp_path / "f"
    path.write_bytes(b"before")
    monkeypatch.setattr(_format.os, "replace", _fail)
    with pytest.raises(OSError, match="disk full"):
        rewritten(made, path)
    assert path.read_bytes() == b"before" and len(list(tmp_path.iterdir())) == 1


def _fail(*_):
    raise OSError("disk full")


def test_the_same_call_makes_the_same_header(tmp_path):
    """Two headers for the same call differ only in the seconds that exporting took."""
    texts = []
    for i in range(2):
        path = tmp_path / str(i)
        f = filter_jit(functions.statics)
        f.export(functions.layer(), functions.x()).save(path)
        reader = _format.Reader(path)
        del reader.header["seconds"]
        texts.append(json.dumps(reader.header))
    assert texts[0] == texts[1]


@dataclasses.dataclass(frozen=True)
class _Slots:
    __slots__ = ("a", "b")
    a: int
    b: tuple


class _Odd(eqx.Module):
    """Has a static field whose value is an instance of a class with slots."""

    slots: _Slots = eqx.field(static=True)
    x: jax.Array


def test_slots(tmp_path):
    slots = object.__new__(_Slots)
    object.__setattr__(slots, "a", 1)
    object.__setattr__(slots, "b", (2.0,))
    odd = _Odd(slots, jnp.ones(2))
    f = filter_jit(lambda odd: (odd, odd.x + odd.slots.a))
    f.export(odd).save(tmp_path / "f")
    got = load(tmp_path / "f", example=(odd,))(odd)
    assert got[0].slots == slots
