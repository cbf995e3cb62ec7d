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
def once(route):
    if route != "cpp":
        pytest.skip("has no route")


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
