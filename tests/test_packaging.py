"""The wheel and the source archive: what is in them, and that they work."""

import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest


_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_VERSION = _PROJECT["project"]["version"]

pytest.importorskip("hatchling", reason="needs the extra dev")


@pytest.fixture(autouse=True)
def once(engine):
    if engine != "native":
        pytest.skip("has no engine")


# As `pip wheel` and `python -m build` have the backend do it, without what they set up
# around it, which would come from the network.
_BUILD = """
import sys
from hatchling import build
build.build_wheel(sys.argv[1])
build.build_sdist(sys.argv[1])
"""


def _build(source: Path, out: Path) -> dict[str, Path]:
    out.mkdir()
    environment = {"PATH": "", "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(
        [sys.executable, "-W", "error", "-c", _BUILD, str(out)],
        cwd=source,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    wheel, sdist = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": next(wheel), "sdist": next(sdist)}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return _build(_ROOT, tmp_path_factory.mktemp("packaging") / "first")


def _in_git(*folders: str, added: bool = False) -> set[str]:
    """The files that git has, and unless `added` those that it would have."""
    new = [] if added else ["-o", "--exclude-standard"]
    command = ["git", "ls-files", "-c", *new, "--", *folders]
    out = subprocess.run(
        command, cwd=_ROOT, check=True, capture_output=True, text=True
    ).stdout
    return {name for name in out.splitlines() if (_ROOT / name).exists()}


def test_wheel_has_the_package_and_nothing_else(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = set(archive.namelist())
        folder = f"eqx_fastjit-{_VERSION}.dist-info"
        metadata = archive.read(f"{folder}/METADATA").decode()
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    about = {n for n in names if n.startswith(folder)}
    if (_ROOT / ".git").exists():
        assert names - about == _in_git("eqx_fastjit")
    assert "eqx_fastjit/py.typed" in names
    files = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert about == {f"{folder}/{name}" for name in files}
    assert "eqx-fastjit = eqx_fastjit.cli:main" in entry_points
    extras = {"bench", "profile", "test", "docs", "dev"}
    lines = metadata.splitlines()
    assert extras == {e.split()[1] for e in lines if e.startswith("Provides-Extra")}
    needed = [x for x in lines if x.startswith("Requires-Dist") and "extra ==" not in x]
    names_needed = {x.split()[1].split(">")[0] for x in needed}
    assert names_needed == {"equinox", "jax", "jaxlib", "jaxtyping"}


# Of what git has. Add a file here, or to what pyproject.toml includes.
_NOT_IN_SDIST: set[str] = set()


def test_source_archive_has_what_a_packager_needs(built):
    folder = f"eqx_fastjit-{_VERSION}/"
    with tarfile.open(built["sdist"]) as archive:
        names = {n.removeprefix(folder) for n in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"} <= names
    assert {"PKG-INFO", "tests/conftest.py", "docs/index.md", "mkdocs.yml"} <= names
    assert not [n for n in names if n.startswith(("site/", ".venv", ".git/"))]
    if (_ROOT / ".git").exists():
        assert _in_git(added=True) - _NOT_IN_SDIST <= names
        assert names - {"PKG-INFO"} <= _in_git() - _NOT_IN_SDIST


def test_builds_are_the_same_byte_for_byte(built, tmp_path):
    # From the source archive, that is from another folder, with other dates.
    with tarfile.open(built["sdist"]) as archive:
        archive.extractall(tmp_path, filter="data")
    again = _build(tmp_path / f"eqx_fastjit-{_VERSION}", tmp_path / "second")
    assert again["wheel"].read_bytes() == built["wheel"].read_bytes()
    assert again["sdist"].read_bytes() == built["sdist"].read_bytes()


_SMOKE = """
import eqx_fastjit, jax.numpy as jnp
from importlib.metadata import version
assert "site-packages" in eqx_fastjit.__file__, eqx_fastjit.__file__
assert eqx_fastjit.__version__ == version("eqx_fastjit")
print(eqx_fastjit.filter_jit(lambda x, n: x * n)(jnp.ones(2), 3).sum())
"""


def test_installed_wheel_works_from_elsewhere(built, tmp_path):
    # What it depends on comes from the environment of the tests, which it itself does
    # not; `.ci/run` installs it all.
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install"]
    options = ["--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, *options, str(built["wheel"])], check=True)
    # Below the site's own, so that ours comes first.
    outside = [path for path in sys.path if path.endswith("-packages")]
    (site / "outside.pth").write_text("\n".join(outside))

    def run(*command: str) -> str:
        return subprocess.run(
            command, cwd=tmp_path, env={"PATH": ""}, capture_output=True, text=True
        ).stdout

    assert run(str(python), "-c", _SMOKE).split() == ["6.0"]
    script = str(tmp_path / "venv" / "bin" / "eqx-fastjit")
    assert f"eqx_fastjit {_VERSION}\n" in run(script, "--version")


_PROGRAM = """
import equinox as eqx, jax, jax.numpy as jnp
import eqx_fastjit

assert "site-packages" in eqx_fastjit.__file__, eqx_fastjit.__file__
model = eqx.nn.MLP(2, 3, 4, 1, key=jax.random.key(0))
wrapped = eqx_fastjit.filter_jit(lambda model, x: model(x))
print(wrapped(model, jnp.ones(2)).shape)
"""
# What each says with the dependencies alone, and its exit code.
_WITHOUT_EXTRAS = [
    (["run", "program.py"], 0, "(3,)"),
    (["doctor", "program.py"], 0, "eqx-fastjit doctor: program.py"),
    (["lock", "program.py"], 0, "signature"),
    (["bench"], 2, "pip install 'eqx_fastjit[bench]'"),
    (["profile", "program.py"], 2, "pip install 'eqx_fastjit[profile]'"),
]
_NO_NETWORK = ("error sending request", "Failed to fetch", "network was disabled")


def _uv(*args: str) -> None:
    """Run uv, which has a cache: the second time nothing is fetched."""
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
    # Once is enough: both install the same.
    for command, wanted, said in _WITHOUT_EXTRAS if kind == "wheel" else []:
        code, out = run("eqx-fastjit", *command)
        assert (code, said in out) == (wanted, True), f"{command}: {code}\n{out}"
        assert "Traceback" not in out
        if wanted == 2:
            assert len(out.splitlines()) == 1
