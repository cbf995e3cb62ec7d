"""Outcomes of mutants and coverage of tests, kept in a folder for later runs."""

import concurrent.futures
import hashlib
import json
import threading
from pathlib import Path
from typing import Any

from ._areas import Area, C_SUFFIXES, ROOT
from ._covered import Covered, record
from ._mutants import Mutant
from ._run import Outcome, Trees


class Kept:
    """A folder with the outcomes of mutants, and the lines that each test runs.

    Entries on a file that has changed since are ignored.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._lock = threading.Lock()

    def covered(self, area: Area, trees: Trees) -> Covered:
        """Which tests run which lines. What is not known is recorded first."""
        package = hashlib.sha256()
        for file in sorted((ROOT / "eqx_fastjit").rglob("*.*")):
            if file.suffix in (".py", *C_SUFFIXES):
                package.update(file.read_bytes())

        def part(test: str) -> Covered:
            names = (Path(test).stem, package.hexdigest()[:12], _digest(Path(test)))
            path = self.folder / f"{'-'.join(names)}.json"
            if not path.exists():
                trees.use(lambda tree: record(tree, [test])).save(path)
            return Covered.load(path)

        with concurrent.futures.ThreadPoolExecutor(len(trees.all)) as pool:
            return Covered.of_all(list(pool.map(part, area.test_files())))

    def add(self, area: Area, mutant: Mutant, outcome: Outcome) -> None:
        """Store the outcome of a mutant."""
        entry = {
            "area": area.name,
            "source": _digest(mutant.file),
            "mutant": [mutant.file.as_posix(), *mutant[1:]],
            "outcome": outcome,
        }
        with self._lock, self._outcomes.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def outcomes(self, area: Area) -> dict[Mutant, Outcome]:
        """The outcomes of the area's mutants; the latest one of each."""
        out: dict[Mutant, Outcome] = {}
        lines = self._outcomes.read_text() if self._outcomes.exists() else ""
        for line in lines.splitlines():
            entry: dict[str, Any] = json.loads(line)
            file, *rest = entry["mutant"]
            mutant = Mutant(Path(file), *rest)
            if entry["area"] == area.name and entry["source"] == _digest(mutant.file):
                out[mutant] = Outcome(*entry["outcome"])
        return out

    @property
    def _outcomes(self) -> Path:
        return self.folder / "outcomes.jsonl"


def _digest(file: Path) -> str:
    path = ROOT / file
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else ""
