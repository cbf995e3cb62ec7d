"""Time jax.jit, equinox.filter_jit and eqx_fastjit side by side: each in its own
processes, in interleaved rounds, after checking that all return the same results. The
exit code is 1 if something could not be timed, or if --compare finds more than
--fail-above allows. It is 2 for bad input, and 130 after Ctrl-C, which still shows the
results so far.
"""

import argparse
import difflib
import math
import shlex
import tempfile
from pathlib import Path
from typing import Any

from ._common import add_options, check_output, CommandError, need


_TABLE = ("identity", *(f"mlp_{2**power}" for power in range(3, 11)))
_ROUNDS, _QUICK_ROUNDS = 25, 5


def declare(parser: argparse.ArgumentParser) -> None:
    options = {
        "--cases CASES": "names of cases or groups, separated by commas; or 'all' "
        "(default: 'table', which is identity and MLPs of width 8 to 1024)",
        "--contenders CONTENDERS": "names, separated by commas (default: all of a "
        "case's contenders that are installed)",
        "--device": {
            "choices": ("cpu", "gpu", "all"),
            "help": "where to run (default: JAX's default device)",
        },
        "--quick": f"run {_QUICK_ROUNDS} rounds only",
        "--rounds ROUNDS": f"rounds for each contender (default: {_ROUNDS})",
        "--json FILE": "write the results as JSON",
        "--html FILE": "write the results as a page",
        "--plot DIR": "write figures, as PNG and SVG",
        "--list": "list the cases without timing them",
        "--compare": {
            "nargs": 2,
            "metavar": ("A.json", "B.json"),
            "help": "compare two results files, without timing anything",
        },
        "--fail-above PERCENT": "with --compare: exit with 1 if a median grew by more "
        "than this, or is missing",
        "--ratios": "with --compare: compare the ratios of ours to the others, rather "
        "than times",
    }
    add_options(parser, options, cases="table")


def main(options: argparse.Namespace) -> int:
    need("rich")
    if options.compare:
        return _compare(options)
    if options.fail_above is not None:
        raise CommandError("--fail-above can only be used with --compare")
    if options.ratios:
        raise CommandError("--ratios can only be used with --compare")
    if options.list:
        return _list()
    try:
        return _time(options)
    except KeyboardInterrupt:  # before there was anything to keep
        return 130


def _split(text: str, option: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise CommandError(f"{option}: expected at least one name")
    return names


def _chosen_cases(text: str) -> list[str]:
    from eqx_fastjit.bench import case_info, case_names, group_names

    known: dict[str, Any] = {
        group: [name for name in case_names() if case_info(name).group == group]
        for group in group_names()
    }
    known |= {name: [name] for name in case_names()}
    known |= {"table": _TABLE, "all": case_names()}
    names: list[str] = []
    for name in _split(text, "--cases"):
        if name not in known:
            found = difflib.get_close_matches(name, known, n=1)
            nearest = f"; did you mean {found[0]!r}?" if found else ""
            raise CommandError(f"no case or group {name!r}{nearest} (--list shows all)")
        names += known[name]
    return list(dict.fromkeys(names))


def _chosen_contenders(text: str | None, cases: list[str]) -> dict[str, Any]:
    """For each case, those to be timed."""
    from eqx_fastjit.bench import case_info, CONTENDERS, contenders_of

    if text is None:
        return {case: contenders_of(case) for case in cases}
    wanted = _split(text, "--contenders")
    for name in wanted:
        if name not in CONTENDERS:
            raise CommandError(
                f"no contender {name!r}; expected one of {', '.join(CONTENDERS)}"
            )
        if not any(name in case_info(case).contenders for case in cases):
            raise CommandError(f"no chosen case has the contender {name!r}")
        if name.startswith("nnx"):
            need("flax")
    chosen = {
        case: tuple(c for c in contenders_of(case) if c in wanted) for case in cases
    }
    return {case: contenders for case, contenders in chosen.items() if contenders}


def _without_missing(cases: list[str]) -> tuple[list[str], list[str]]:
    """The cases that can be built, and a line about each of the others."""
    from eqx_fastjit.bench import case_info

    missing = {name: case_info(name).missing for name in cases}
    lines = [
        f"Skipped {name}, which needs {' and '.join(packages)}: "
        f"pip install {' '.join(packages)}"
        for name, packages in missing.items()
        if packages
    ]
    there = [name for name in cases if not missing[name]]
    if not there:
        raise CommandError("; ".join(lines))
    return there, lines


def _check_directory(path: str, option: str) -> None:
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as e:
        raise CommandError(f"{option}: cannot write to {path}: {e.strerror}") from None


def _devices(option: str | None) -> list[dict[str, str]]:
    """The devices to run on, according to a fresh process."""
    from eqx_fastjit.bench._session import describe_device, Refused

    try:
        default = describe_device("cpu" if option == "cpu" else None)
        has_gpu = default["device"] == "gpu"
        if option == "all":
            cpu = describe_device("cpu")
            return [cpu, default] if has_gpu else [cpu]
    except Refused as e:
        raise CommandError(f"JAX does not start: {e}") from None
    if option == "gpu" and not has_gpu:
        raise CommandError(
            f"--device gpu: JAX sees no GPU here; it runs on {default['device']}"
        )
    return [default]


def _rounds(options: argparse.Namespace) -> int:
    if options.rounds is None:
        return _QUICK_ROUNDS if options.quick else _ROUNDS
    if options.rounds < 1:
        raise CommandError(f"--rounds {options.rounds}: expected at least 1")
    return options.rounds


def _command(options: argparse.Namespace) -> str:
    """The command, without the files it writes."""
    words = ["eqx-fastjit", "bench"]
    for name in ("cases", "contenders", "device", "rounds"):
        value = getattr(options, name)
        if value is not None and (name, value) != ("cases", "table"):
            words += [f"--{name}", str(value)]
    return shlex.join(words + ["--quick"] * options.quick)


def _time(options: argparse.Namespace) -> int:
    rounds = _rounds(options)
    cases, skipped = _without_missing(_chosen_cases(options.cases))
    contenders = _chosen_contenders(options.contenders, cases)
    if options.json:
        check_output("--json", options.json)
    if options.html:
        need("matplotlib")
        check_output("--html", options.html)
    if options.plot:
        need("matplotlib")
        _check_directory(options.plot, "--plot")

    from rich.console import Console

    from eqx_fastjit.bench import case_info
    from eqx_fastjit.bench._results import new_results
    from eqx_fastjit.bench._run import Job, run_jobs
    from eqx_fastjit.bench._table import print_results

    console = Console()
    for line in skipped:
        console.print(line, style="yellow", highlight=False, markup=False)
    devices = _devices(options.device)
    if options.device == "all" and len(devices) == 1:
        console.print("JAX sees no GPU here: using the CPU only.")
    jobs = [
        Job(case, contenders[name], device, min(rounds, case.max_rounds or rounds))
        for device in devices
        for name in contenders
        if (case := case_info(name)).cpu_devices == 1 or device["device"] == "cpu"
    ]
    if not jobs:
        raise CommandError("none of these cases runs on a GPU")
    results = new_results(_command(options), devices[0]["engine"])
    run_jobs(console, jobs, results)
    print_results(console, results)
    if results["cases"]:
        _write(options, results, console)
    if results["interrupted"]:
        console.print("Interrupted. The results so far are shown above.")
        return 130
    return 1 if results["problems"] else 0


def _write(options: argparse.Namespace, results: Any, console: Any) -> None:
    from eqx_fastjit.bench._results import dumps

    try:
        if options.json:
            Path(options.json).write_text(dumps(results), encoding="utf-8")
        if options.html:
            from eqx_fastjit.bench._page import page

            Path(options.html).write_text(page(results), encoding="utf-8")
        if options.plot:
            _plot(Path(options.plot), results, console)
    except OSError as e:
        raise CommandError(f"cannot write {e.filename}: {e.strerror}") from None


def _plot(directory: Path, results: Any, console: Any) -> None:
    from eqx_fastjit.bench._plots import FIGURES, render

    for suffix in ("png", "svg"):
        drawn = render(results, suffix)
        for name, content in drawn.items():
            (directory / f"{name}.{suffix}").write_bytes(content)
    for name, needs in FIGURES.items():
        if not any(drawn_name.startswith(name) for drawn_name in drawn):
            console.print(f"The figure '{name}' was not drawn: it needs {needs}.")


def _list() -> int:
    from rich.console import Console
    from rich.table import Table

    from eqx_fastjit.bench import case_info, case_names, contenders_of

    table = Table("case", "group", "what", "contenders")
    for name in case_names():
        case = case_info(name)
        table.add_row(name, case.group, case.title, " ".join(contenders_of(name)))
    Console().print(table)
    return 0


def _check_compared(options: argparse.Namespace) -> None:
    if not math.isfinite(options.fail_above or 0):
        raise CommandError(f"--fail-above {options.fail_above}: expected a percentage")
    others = ("contenders", "device", "rounds", "json", "html", "plot", "quick", "list")
    given = [name for name in others if getattr(options, name) not in (None, False)]
    if options.cases != "table":
        given.insert(0, "cases")
    if given:
        raise CommandError(f"--{given[0]} cannot be used with --compare")


def _compare(options: argparse.Namespace) -> int:
    from rich.console import Console

    from eqx_fastjit.bench._compare import compare, name_of, print_comparison
    from eqx_fastjit.bench._results import BadResults, load

    _check_compared(options)
    try:
        before, after = map(load, options.compare)
    except BadResults as e:
        raise CommandError(str(e)) from None
    comparison = compare(before, after, ratios=options.ratios)
    if not comparison.changes:
        raise CommandError("these results do not share any case and contender")
    console = Console()
    print_comparison(console, before, after, comparison)
    limit = options.fail_above
    if limit is None:
        return 0
    lines = [
        f"{name_of(row)}: {row.percent:+.1f}% is above {limit:g}%"
        for row in comparison.changes
        if row.percent > limit
    ]
    # What is missing may have failed, so it cannot count as unchanged.
    lines += [f"{name}: missing in B" for name in comparison.gone]
    for line in lines:
        console.print(line, style="red", highlight=False, markup=False)
    return int(bool(lines))
