"""The contents of the wheel and the source archive, and whether they work."""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest


_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_VERSION = _PROJECT["project"]["version"]
_NATIVE = f"eqx_fastjit/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
_SMOKE = _ROOT / "scripts" / "smoke.py"

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
# What setup.py prints once if it cannot build the extension.
_NOT_BUILT = "the C extension was not built"


def _run_backend(
    source: Path, out: Path, *kinds: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    out.mkdir()
    environment = {"PATH": os.environ["PATH"], **environment}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _BUILD, str(out), *kinds],
        cwd=source,
        env={"SOURCE_DATE_EPOCH": "1700000000", **environment},
        capture_output=True,
        text=True,
    )


def _build(source: Path, out: Path) -> dict[str, Path]:
    run = _run_backend(source, out, "wheel", "sdist", EQX_FASTJIT_REQUIRE_NATIVE="1")
    assert run.returncode == 0, run.stderr
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    if shutil.which((sysconfig.get_config_var("CC") or "cl").split()[0]) is None:
        pytest.skip("needs a C compiler")
    return _build(_ROOT, tmp_path_factory.mktemp("packaging") / "first")


@pytest.fixture(scope="module")
def built_without(tmp_path_factory):
    """A wheel that was built without a compiler."""
    out = tmp_path_factory.mktemp("packaging") / "python"
    run = _run_backend(_ROOT, out, "wheel", CC="there-is-no-compiler")
    assert run.returncode == 0, run.stderr
    (said,) = [line for line in run.stderr.splitlines() if _NOT_BUILT in line]
    assert "Python engine" in said
    (wheel,) = out.glob("*.whl")
    return wheel


def _in_git(*folders: str, added: bool = False) -> set[str]:
    """The files that git tracks and, unless `added`, the untracked ones not ignored."""
    new = [] if added else ["-o", "--exclude-standard"]
    command = ["git", "ls-files", "-c", *new, "--", *folders]
    out = subprocess.run(
        command, cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout
    return {name for name in out.splitlines() if (_ROOT / name).exists()}


def _of_package() -> set[str]:
    """The files of the package that a wheel contains: all but C sources."""
    return {n for n in _in_git("eqx_fastjit") if not n.endswith((".c", ".h"))}


def test_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
        folder = f"eqx_fastjit-{_VERSION}.dist-info"
        metadata = archive.read(f"{folder}/METADATA").decode()
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    about = {n for n in names if n.startswith(folder)}
    if (_ROOT / ".git").exists():
        assert names - about == _of_package() | {_NATIVE}
    assert {"eqx_fastjit/py.typed", _NATIVE} <= names
    files = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert about == {f"{folder}/{name}" for name in (*files, "top_level.txt")}
    assert "eqx-fastjit = eqx_fastjit.cli:main" in entry_points
    extras = {"bench", "export", "profile", "test", "docs", "dev"}
    lines = metadata.splitlines()
    assert extras == {e.split()[1] for e in lines if e.startswith("Provides-Extra")}
    needed = [x for x in lines if x.startswith("Requires-Dist") and "extra ==" not in x]
    names_needed = {x.split()[1].split(">")[0] for x in needed}
    assert names_needed == {"equinox", "jax", "jaxlib", "jaxtyping"}


# Files that git tracks and the source archive leaves out. Add a file either here or to
# MANIFEST.in.
_NOT_IN_SDIST: set[str] = set()


def test_source_archive_has_what_a_packager_needs(built):
    folder = f"eqx_fastjit-{_VERSION}/"
    with tarfile.open(built["sdist"]) as archive:
        files = [member.name for member in archive if member.isfile()]
    names = {name.removeprefix(folder) for name in files}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert {"PKG-INFO", "tests/conftest.py", "docs/index.md", "mkdocs.yml"} <= names
    assert not [n for n in names if n.startswith(("site/", ".venv", ".git/"))]
    if (_ROOT / ".git").exists():
        assert _in_git(added=True) - _NOT_IN_SDIST <= names
        assert names - {"PKG-INFO"} <= _in_git() - _NOT_IN_SDIST


def test_builds_are_the_same_byte_for_byte(built, tmp_path):
    # Build from the source archive, which is another folder with other file dates.
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    again = _build(tmp_path / f"eqx_fastjit-{_VERSION}", tmp_path / "second")
    assert again["wheel"].read_bytes() == built["wheel"].read_bytes()
    assert again["sdist"].read_bytes() == built["sdist"].read_bytes()


def test_without_a_compiler_a_wheel_has_the_python_engine(built_without):
    with zipfile.ZipFile(built_without) as archive:
        names = {n for n in archive.namelist() if n.startswith("eqx_fastjit/")}
    assert "eqx_fastjit/__init__.py" in names and _NATIVE not in names
    if (_ROOT / ".git").exists():
        assert names == _of_package()


@pytest.mark.parametrize("required", [False, True])
def test_a_compiler_that_fails(tmp_path, required):
    environment = {"CC": "false", "EQX_FASTJIT_REQUIRE_NATIVE": str(int(required))}
    run = _run_backend(_ROOT, tmp_path / "out", "wheel", **environment)
    assert (run.returncode != 0) == required
    assert run.stderr.count(_NOT_BUILT) == (0 if required else 1)
    assert bool(list((tmp_path / "out").glob("*.whl"))) != required


def test_processes_of_the_tests_have_the_same_engine():
    """Some tests start processes in the checkout, others with it on PYTHONPATH."""
    code = """if 1:
        import importlib.util
        print(importlib.util.find_spec("eqx_fastjit._native") is not None)
    """
    here = subprocess.run(
        [sys.executable, "-c", code], cwd=_ROOT, capture_output=True, text=True
    )
    native = importlib.util.find_spec("eqx_fastjit._native") is not None
    assert here.stdout == f"{native}\n", "pip install -e . builds it in the checkout"


@pytest.mark.parametrize("form", ["native", "python"])
def test_installed_wheel_works_from_elsewhere(request, tmp_path, form):
    # The dependencies come from the environment of the tests, not from pip; `.ci/run`
    # also tests an installation with them.
    wheel = (
        request.getfixturevalue("built")["wheel"]
        if form == "native"
        else request.getfixturevalue("built_without")
    )
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    # If the checkout is on PYTHONPATH, pip considers the package installed.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run([*install, *options, str(wheel)], check=True, env=env)
    # The other site-packages come after the environment's own, so that its wheel is
    # imported.
    outside = [path for path in sys.path if path.endswith("-packages")]
    (site / "outside.pth").write_text("\n".join(outside))

    def run(*command: str) -> str:
        out = subprocess.run(
            command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
        )
        assert out.returncode == 0, out.stderr
        return out.stdout

    assert f"works: {form} engine" in run(str(python), str(_SMOKE), form)
    script = str(tmp_path / "venv" / "bin" / "eqx-fastjit")
    said = run(script, "--version")
    assert f"eqx_fastjit {_VERSION}\n" in said and f"engine {form}" in said


_PROGRAM = """
import equinox as eqx, jax, jax.numpy as jnp
import eqx_fastjit

assert "site-packages" in eqx_fastjit.__file__, eqx_fastjit.__file__
model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
wrapped = eqx_fastjit.filter_jit(lambda model, x: model(x))
print(wrapped(model, jnp.ones(2)).shape)
"""
# For each command with only the required dependencies: exit code and part of the
# output.
_WITHOUT_EXTRAS = [
    (["run", "program.py"], 0, "(3,)"),
    (["doctor", "program.py"], 0, "eqx-fastjit doctor: program.py"),
    (["lock", "program.py"], 0, "signature"),
    (["profile", "program.py"], 2, "pip install pyinstrument"),
]
_NO_NETWORK = ("error sending request", "Failed to fetch", "network was disabled")


def _uv(*args: str) -> None:
    """Run uv, whose cache avoids a second download."""
    command = [sys.executable, "-m", "uv", "--no-progress", *args]
    out = subprocess.run(command, capture_output=True, text=True)
    if any(words in out.stderr for words in _NO_NETWORK):
        pytest.skip("the package registry cannot be reached")
    assert out.returncode == 0, out.stderr


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_works_with_its_dependencies_alone(built, tmp_path, kind):
    pytest.importorskip("uv", reason="needs the extra dev")
    bin_ = tmp_path / "venv" / "bin"
    _uv("venv", "--python", sys.executable, str(bin_.parent))
    _uv("pip", "install", "--python", str(bin_ / "python"), str(built[kind]))
    (tmp_path / "program.py").write_text(_PROGRAM)

    def run(*command: str) -> tuple[int, str]:
        out = subprocess.run(
            [bin_ / command[0], *command[1:]],
            cwd=tmp_path,
            env={"PATH": "", "HOME": str(tmp_path)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return out.returncode, out.stdout

    assert run("python", "program.py") == (0, "(3,)\n")
    code, out = run("eqx-fastjit", "--version")
    assert code == 0 and f"eqx_fastjit {_VERSION}\n" in out
    assert "rich" not in out and "engine native" in out
    # Tested for one kind only, since both install the same files.
    for command, wanted, said in _WITHOUT_EXTRAS if kind == "wheel" else []:
        code, out = run("eqx-fastjit", *command)
        assert (code, said in out) == (wanted, True), f"{command}: {code}\n{out}"
        assert "Traceback" not in out
        if wanted == 2:
            assert len(out.splitlines()) == 1
