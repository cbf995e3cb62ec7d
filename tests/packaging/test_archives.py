"""The wheel has the package alone, and works without a C compiler.

The source archive has all that git has.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import eqx_fastjit


ROOT = Path(__file__).parents[2]
VERSION = eqx_fastjit.__version__
NATIVE = f"eqx_fastjit/_native{sysconfig.get_config_var('EXT_SUFFIX')}"

pytest.importorskip("setuptools", minversion="77.0.3", reason="needs the extra test")
pytestmark = pytest.mark.one_engine

# Calls the build backend as `pip wheel` and `python -m build` do, without the isolated
# environment that they would install from the network.
_BUILD = """
import sys
from setuptools import build_meta
_, out, *kinds = sys.argv
for kind in kinds:
    getattr(build_meta, f"build_{kind}")(out)
"""
NOT_BUILT = "the C extension was not built"


def build(source, out, *kinds, **environment):
    """Build a wheel or a source archive, or both; the process that has ended."""
    out.mkdir()
    fixed = {"PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _BUILD, str(out), *kinds],
        cwd=source,
        env={**fixed, **environment},
        capture_output=True,
        text=True,
    )


def one(folder, pattern):
    (file,) = folder.glob(pattern)
    return file


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A folder with a wheel and a source archive of the checkout."""
    if shutil.which((sysconfig.get_config_var("CC") or "cl").split()[0]) is None:
        pytest.skip("needs a C compiler")
    out = tmp_path_factory.mktemp("packaging") / "out"
    ended = build(ROOT, out, "wheel", "sdist", EQX_FASTJIT_REQUIRE_NATIVE="1")
    assert ended.returncode == 0, ended.stderr
    return out


@pytest.fixture(scope="module")
def in_git():
    """The files that git tracks, or would if they were added."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs git's history")
    command = ["git", "ls-files", "-co", "--exclude-standard"]
    out = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {name for name in out.stdout.splitlines() if (ROOT / name).exists()}


def names_in(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info" not in name}


def of_package(names):
    """All but the C sources."""
    package = {name for name in names if name.startswith("eqx_fastjit/")}
    return {name for name in package if not name.endswith((".c", ".h"))}


def test_a_wheel_has_the_package_alone(built, in_git):
    """Neither benchmarks, scripts and tests, nor the C sources."""
    assert names_in(one(built, "*.whl")) == of_package(in_git) | {NATIVE}


def test_a_wheel_names_its_commands_and_extras(built):
    """And depends on nothing but JAX and Equinox, and what types those have."""
    with zipfile.ZipFile(one(built, "*.whl")) as archive:
        folder = f"eqx_fastjit-{VERSION}.dist-info"
        metadata = archive.read(f"{folder}/METADATA").decode().splitlines()
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    assert "eqx-fastjit = eqx_fastjit.cli:main" in entry_points
    assert "eqx_fastjit = eqx_fastjit.pytest_plugin" in entry_points

    def values_of(field):
        prefix = f"{field}: "
        lines = [line for line in metadata if line.startswith(prefix)]
        return [line.removeprefix(prefix) for line in lines]

    extras = {"bench", "export", "insight", "profile", "test", "docs", "dev"}
    assert {*values_of("Provides-Extra")} == extras
    always = [x for x in values_of("Requires-Dist") if "extra ==" not in x]
    names = {requirement.partition(">")[0] for requirement in always}
    assert names == {"equinox", "jax", "jaxlib", "jaxtyping"}


def test_a_source_archive_has_what_git_has(built, in_git):
    """So that all checks run from it, too."""
    folder = f"eqx_fastjit-{VERSION}/"
    with tarfile.open(one(built, "*.tar.gz")) as archive:
        files = {x.name.removeprefix(folder) for x in archive if x.isfile()}
    made = {x for x in files if x.startswith("eqx_fastjit.egg-info/")}
    assert files - made == in_git | {"PKG-INFO", "setup.cfg"}


@pytest.mark.parametrize("remote", ["https://github.com/a/b.git", "git@github.com:a/b"])
def test_links_work_on_the_package_index(tmp_path, in_git, remote):
    """The README's links and pictures are those of the repository it is built from."""
    tree = tmp_path / "tree"
    for name in in_git:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for command in ("init -q", f"remote add origin {remote}"):
        subprocess.run(["git", *command.split()], cwd=tree, check=True)

    out = tmp_path / "out"
    ended = build(tree, out, "wheel", CC="false")
    assert ended.returncode == 0, ended.stderr
    with zipfile.ZipFile(one(out, "*.whl")) as archive:
        metadata = archive.read(f"eqx_fastjit-{VERSION}.dist-info/METADATA").decode()
    assert "Project-URL: Issues, https://github.com/a/b/issues\n" in metadata

    _, _, readme = metadata.partition("\n\n")
    links, pictures = targets_in(readme)
    blob = "https://github.com/a/b/blob/HEAD/"
    raw = "https://raw.githubusercontent.com/a/b/HEAD/"
    assert links and all(link.startswith("https://") for link in links)
    assert pictures and all(picture.startswith(raw) for picture in pictures)
    for target in (*links, *pictures):
        for prefix in (blob, raw):
            if target.startswith(prefix):
                path, _, _ = target.removeprefix(prefix).partition("#")
                assert (ROOT / path).exists(), target


def targets_in(readme):
    """The links of a page to other pages, and its pictures."""
    text = re.sub(r"```.*?```", "", readme, flags=re.DOTALL)
    links = re.findall(r"\]\(([^)#][^)]*)\)", text)
    pictures = re.findall(r"src(?:set)?=\"([^\"]+)\"", text)
    return links, pictures


@pytest.mark.parametrize(
    ("compiler", "required"),
    [("there-is-no-compiler", ""), ("false", ""), ("false", "1")],
)
def test_without_a_compiler_there_is_one_warning(tmp_path, in_git, compiler, required):
    """And a wheel with the reference alone; or an error, as for one to be published."""
    variables = {"CC": compiler, "EQX_FASTJIT_REQUIRE_NATIVE": required}
    out = tmp_path / "out"
    ended = build(ROOT, out, "wheel", **variables)
    assert (ended.returncode != 0) == bool(required), ended.stderr
    assert ended.stderr.count(NOT_BUILT) == (not required)
    assert required or names_in(one(out, "*.whl")) == of_package(in_git)


# --- without the extension, or with a broken one --------------------------------------

# An editable install would find the extension of the checkout.
_CALL = """
import sys, warnings
sys.meta_path = [x for x in sys.meta_path if "Editable" not in str(x)]
warnings.simplefilter("always")
import jax.numpy as jnp, eqx_fastjit
f = eqx_fastjit.filter_jit(lambda x, n: (x * n, n))
x, n = f(jnp.ones(2), 3)
assert n == 3 and x.tolist() == [3, 3]
eqx_fastjit.filter_jit(lambda x: x)(x)
print(eqx_fastjit.engine(), eqx_fastjit.__file__)
"""


@pytest.fixture
def copied(tmp_path):
    """Runs a program on a copy of the package that has no extension."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "eqx_fastjit", tmp_path / "eqx_fastjit", ignore=ignored)

    def call(**environment):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("EQX_FASTJIT")}
        return subprocess.run(
            [sys.executable, "-c", _CALL],
            env={**kept, "PYTHONPATH": str(tmp_path), **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return call


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_missing_or_broken_extension_is_one_warning(copied, tmp_path, is_broken):
    """Calls take the reference, which can be asked for, too; or there is an error."""
    if is_broken:
        (tmp_path / NATIVE).write_bytes(b"no library")
    ended = copied()
    assert ended.stdout == f"python {tmp_path / 'eqx_fastjit' / '__init__.py'}\n"
    reason = "cannot be loaded" if is_broken else "was not built"
    assert ended.stderr.count(f"the C extension {reason}") == 1
    assert not is_broken or NATIVE in ended.stderr

    ended = copied(EQX_FASTJIT_ENGINE="python")
    assert ended.stdout.startswith("python") and ended.stderr == ""

    ended = copied(EQX_FASTJIT_ENGINE="native")
    assert ended.returncode and "EQX_FASTJIT_ENGINE=native, but the C" in ended.stderr


def test_a_checkout_in_place_of_an_installed_build(copied, tmp_path):
    """The warning says that the extension was built, and where it is."""
    installed = tmp_path / "site"
    (installed / NATIVE).parent.mkdir(parents=True)
    shutil.copy(ROOT / NATIVE, installed / NATIVE)
    path = os.pathsep.join(map(str, (tmp_path, installed)))
    ended = copied(PYTHONPATH=path)
    assert ended.stdout.startswith("python")
    text = f"was not built in {tmp_path / 'eqx_fastjit'}, which is imported in place of"
    assert text in ended.stderr and str(installed / "eqx_fastjit") in ended.stderr
    assert "pip install -e ." in ended.stderr


def test_the_version_is_told_without_the_dependencies():
    """What bug reports ask for does not end in a traceback."""
    code = "import sys; sys.path.insert(0, {!r}); from eqx_fastjit import cli\n"
    code = code.format(str(ROOT)) + "sys.exit(cli.main(['--version']))"
    alone = [sys.executable, "-I", "-S", "-c", code]
    ended = subprocess.run(alone, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f"eqx_fastjit {VERSION}\nequinox: not installed\n" in ended.stdout
