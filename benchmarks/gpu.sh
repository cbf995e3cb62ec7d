#!/usr/bin/env bash
# What a GPU changes, in at most eight minutes and without a network:
#
#     benchmarks/gpu.sh FOLDER [--device gpu|cpu] [--quick]
#
# On a machine with a GPU, and JAX for it, this builds the extension where it stands and
# leaves in FOLDER, each as soon as it is there:
#
#     gpu_tests.json     tests/test_device.py (asynchronous dispatch, donation, host
#                        callbacks and error_if, NumPy batches that are refilled), and
#                        those of tests/test_corpus.py on the same, on each engine
#     gpu_pipeline.json  a loop whose host prepares batches while the device works
#     gpu_table.json     the speed table: identity and MLPs of width 8 to 1024
#     gpu_zoo.json       whole programs, as many as there is time for
#     log.txt            what all of these printed
#
# Put the JSON files into benchmarks/results, run scripts/generate_docs.py, and commit
# both: docs/performance.md shows them. The exit code is 0 if all was run and passed.
#
# Python is $PYTHON (python3). What it lacks beside JAX is taken from a folder of wheels,
# $EQX_FASTJIT_WHEELS, and put where only this run sees it, before all that is installed.
# To fill one elsewhere, for the same version of Python and without a JAX, which would
# take the place of that machine's:
#
#     pip download --only-binary=:all: --no-deps --dest wheels \
#         equinox jaxtyping wadler-lindig typing-extensions optax absl-py diffrax \
#         lineax optimistix rich markdown-it-py mdurl pygments pytest iniconfig pluggy \
#         packaging setuptools
#
# Where there is no git, $EQX_FASTJIT_COMMIT says which commit this is.
#
# --device cpu --quick is a dry run: next to nothing of each, on a machine without a GPU.
set -uo pipefail

readonly SECONDS_IN_ALL=445  # and some to end in
usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; }
fail() { echo "gpu.sh: $1" >&2; exit 2; }

folder= device=gpu quick=
while [ $# -gt 0 ]; do
    case $1 in
        --device) [ $# -gt 1 ] || fail "--device: expected gpu or cpu"; device=$2; shift ;;
        --quick) quick=1 ;;
        -h | --help) usage; exit 0 ;;
        -*) fail "no option $1; see --help" ;;
        *) [ -z "$folder" ] || fail "expected one folder"; folder=$1 ;;
    esac
    shift
done
[ -n "$folder" ] || fail "expected a folder for the results; see --help"
case $device in gpu | cpu) ;; *) fail "--device $device: expected gpu or cpu" ;; esac

mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || fail "cannot write to $folder"
cd "$(dirname "$0")/.." || exit 2
python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
log=$folder/log.txt
: >"$log" || fail "cannot write to $folder"

# --- the environment -----------------------------------------------------------------

export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
if [ -n "${EQX_FASTJIT_WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --no-compile --no-cache-dir \
        --target "$scratch/site" "$EQX_FASTJIT_WHEELS"/*.whl >>"$log" 2>&1 ||
        fail "the wheels in $EQX_FASTJIT_WHEELS cannot be installed; see $log"
    PYTHONPATH="$PYTHONPATH:$scratch/site"
fi
# Several processes share the GPU.
export XLA_PYTHON_CLIENT_PREALLOCATE=false
# With bytecode, as an installed package has it.
unset PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX=$scratch/bytecode
if [ "$device" = cpu ]; then export JAX_PLATFORMS=cpu; fi

"$python" - "$device" <<'PYTHON' || exit 2
import importlib.util, sys

# `-` has put nothing of ours in the way: PYTHONPATH has it.
needed = ("jax", "equinox", "jaxtyping", "rich", "pytest")
missing = [name for name in needed if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"gpu.sh: not installed: {', '.join(missing)}; see EQX_FASTJIT_WHEELS")
import jax

device = jax.devices()[0]
if device.platform != sys.argv[1]:
    sys.exit(f"gpu.sh: JAX {jax.__version__} runs on {device.platform} here")
print(f"JAX {jax.__version__} on {device.device_kind}")
PYTHON

# --- the extension -------------------------------------------------------------------

is_built() { "$python" -c 'import eqx_fastjit._native' >>"$log" 2>&1; }

build_by_hand() {
    local include suffix
    include=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    "${CC:-cc}" -shared -fPIC -std=c11 -O3 -fvisibility=hidden -I"$include" \
        eqx_fastjit/_native.c -o "eqx_fastjit/_native$suffix"
}

failed=0
if [ -f eqx_fastjit/_native.c ]; then
    { [ -f setup.py ] && "$python" setup.py build_ext --inplace; } >>"$log" 2>&1
    is_built || build_by_hand >>"$log" 2>&1
    if is_built; then
        echo "extension: built"
    else
        echo "extension: NOT BUILT, see log.txt; going on with the Python engine"
        failed=1
    fi
else
    echo "extension: none in this checkout"
fi

# --- what is run ---------------------------------------------------------------------

left() { echo $((SECONDS_IN_ALL - SECONDS)); }

# step NAME MOST COMMAND...: runs it for at most MOST seconds, or what is left. Then it
# is sent what Ctrl-C sends, on which the benchmark keeps what it has measured. That may
# be ignored here, and would then be ignored there.
step() {
    local name=$1 most=$2 code begun=$SECONDS
    shift 2
    [ "$most" -le "$(left)" ] || most=$(left)
    if [ "$most" -lt 5 ]; then
        echo "$name: no time left"
        failed=1
        return
    fi
    echo "--- $name: $*" >>"$log"
    env --default-signal=INT timeout --signal=INT --kill-after=8 "$most" "$@" \
        >>"$log" 2>&1 </dev/null
    code=$?
    case $code in
        0) echo "$name: done in $((SECONDS - begun)) s" ;;
        124 | 130 | 137) echo "$name: stopped after $most s; what was measured is kept" ;;
        *) echo "$name: FAILED with code $code, see log.txt" ;;
    esac
    [ $code = 0 ] || failed=1
}

run_tests() {
    local options=(-q -p no:cacheprovider -o addopts= -W default) reports=$scratch
    local files=(tests/test_device.py) wanted=() which
    which='donat or callback or error or numpy'
    [ -z "$quick" ] || wanted=(-k "refilled")
    step "tests of the device" 150 "$python" -m pytest "${options[@]}" \
        --junitxml="$reports/device.xml" "${files[@]}" "${wanted[@]}"
    [ -z "$quick" ] || return
    step "tests of the corpus" 90 "$python" -m pytest "${options[@]}" \
        --junitxml="$reports/corpus.xml" tests/test_corpus.py -k "$which"
}

# bench NAME MOST CASES CONTENDERS: into gpu_NAME.json.
bench() {
    local name=$1 most=$2 options=(--cases "$3" --contenders "$4" --quick)
    options+=(--device "$device" --json "$folder/gpu_$name.json")
    [ -z "$quick" ] || options+=(--rounds 1)
    step "$name" "$most" "$python" -m eqx_fastjit.cli bench "${options[@]}"
}

# The first case of the zoo if nothing more is wanted of it; nothing if there is no zoo.
zoo() {
    "$python" - "$quick" <<'PYTHON' 2>>"$log"
import sys
from eqx_fastjit.bench import case_info, case_names

zoo = [name for name in case_names() if case_info(name).group == "zoo"]
print(zoo[0] if zoo and sys.argv[1] else "zoo" if zoo else "")
PYTHON
}

table=table contenders=jit,flat,eqx,ours
[ -z "$quick" ] || { table=identity contenders=jit,ours; }
run_tests
bench pipeline 60 overlap jit,eqx,ours
bench table 100 "$table" "$contenders"
cases=$(zoo)
if [ -n "$cases" ]; then
    bench zoo "$SECONDS_IN_ALL" "$cases" "$contenders"
else
    echo "zoo: none in this checkout"
fi

# --- results -------------------------------------------------------------------------

"$python" - "$scratch" "$folder" "$0 --device $device${quick:+ --quick}" \
    <<'PYTHON' 2>>"$log" || failed=1
import json, os, sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import eqx_fastjit, jax
from eqx_fastjit.bench._results import new_results, short_commit

scratch, folder, command = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
commit = os.environ.get("EQX_FASTJIT_COMMIT", "unknown")
results = new_results(command, eqx_fastjit.engine())
results.setdefault("commit", commit)
rows = []
for path in sorted(scratch.glob("*.xml")):
    for suite in ElementTree.parse(path).getroot().iter("testsuite"):
        count = {k: int(suite.get(k, 0)) for k in ("tests", "skipped")}
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        kind = jax.devices()[0].device_kind
        what = f"tests/test_{path.stem}.py on {kind}: failures, of {count['tests']} "
        rows.append(
            {
                "what": f"{what}tests, {count['skipped']} skipped",
                "value": failed,
                "runs": [failed],
                "at_most": 0,
                "commit": short_commit(results["commit"]),
                "command": command,
            }
        )
kept = {key: results[key] for key in ("date", "machine", "versions", "engine", "commit")}
tests = json.dumps({**kept, "rows": rows}, indent=1)
(folder / "gpu_tests.json").write_text(tests + "\n")
# Timed by processes that had no git to ask.
for path in folder.glob("gpu_*.json"):
    words = path.read_text()
    if "commit" not in json.loads(words):
        path.write_text(words.replace("{\n", f'{{\n "commit": "{commit}",\n', 1))
PYTHON

echo "$SECONDS s in all; results in $folder"
exit $failed
