#!/usr/bin/env bash
# What a GPU changes, in at most eight minutes and without a network:
#
#     benchmarks/gpu.sh FOLDER [--device gpu|cpu] [--quick]
#
# On a machine with a GPU, and JAX for it, this builds the extension where it stands, and
# leaves in FOLDER:
#
#     gpu.json   the benchmarks: the table, training steps, whole functions and loops
#     tests.txt  how the tests of tests/engine ended, and which failed
#     refilled-equinox.txt, refilled-install.txt
#                the losses of loops that refill their batch, which must be the same
#     log.txt    what all of these printed
#
# Put gpu.json into benchmarks/results, run scripts.generate_docs, and commit both:
# docs/performance.md shows it. The exit code is 0 if all was run and passed.
#
# Python is $PYTHON (python3). What it lacks beside JAX is taken from a folder of wheels,
# $EQX_FASTJIT_WHEELS, and put where only this run sees it. To fill one elsewhere, for
# the same version of Python, and without a JAX that would take the place of that one:
#
#     pip download --only-binary=:all: --no-deps --dest wheels equinox jaxtyping \
#         wadler-lindig typing-extensions optax absl-py diffrax lineax optimistix rich \
#         markdown-it-py mdurl pygments pytest iniconfig pluggy packaging setuptools \
#         pytest-xdist execnet attrs cloudpickle msgspec pydantic pydantic-core \
#         annotated-types typing-inspection wrapt
#
# Where there is no git, $EQX_FASTJIT_COMMIT says which commit this is.
#
# --device cpu --quick is a dry run, on a machine without a GPU.
set -uo pipefail

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
log=$folder/log.txt
: >"$log" || fail "cannot write to $folder"
cd "$(dirname "$0")/.." || exit 2

python=${PYTHON:-python3}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" XLA_PYTHON_CLIENT_PREALLOCATE=false
if [ -n "${EQX_FASTJIT_WHEELS:-}" ]; then
    "$python" -m pip install --quiet --no-index --no-deps --target "$scratch/site" \
        "$EQX_FASTJIT_WHEELS"/*.whl >>"$log" 2>&1 ||
        fail "the wheels in $EQX_FASTJIT_WHEELS cannot be installed; see $log"
    PYTHONPATH="$PYTHONPATH:$scratch/site"
fi
[ "$device" = gpu ] || export JAX_PLATFORMS=cpu
found=$("$python" -c 'import jax; print(jax.devices()[0].platform)' 2>>"$log") ||
    fail "JAX does not start; see $log"
[ "$found" = "$device" ] || fail "JAX runs on $found here"

failed=0
"$python" setup.py -q build_ext --inplace >>"$log" 2>&1
engine=$("$python" -c 'import eqx_fastjit; print(eqx_fastjit.engine())' 2>>"$log")
echo "engine: $engine"
[ "$engine" = native ] || failed=1

# step NAME SECONDS COMMAND...: then it is sent what Ctrl-C sends, upon which the
# benchmark keeps what it has measured. It may be ignored here, but must not be there.
step() {
    local name=$1 most=$2 code
    shift 2
    env --default-signal=INT timeout --signal=INT --kill-after=20 "$most" "$@" \
        >>"$log" 2>&1 </dev/null
    code=$?
    case $code in
        0) echo "$name: done" ;;
        124 | 130) echo "$name: stopped after $most s; what was measured is kept" ;;
        *) echo "$name: FAILED with code $code, see log.txt"; failed=1 ;;
    esac
}

cases=table,steps,zoo,loops rounds=15
pytest=("$python" -m pytest -q -p no:cacheprovider -o addopts= -W default tests/engine)
workers=8 refills="200 65536"
if [ -n "$quick" ]; then
    cases=identity rounds=2 pytest+=(-k refilled) workers=2 refills="8 512"
fi
step tests 150 "${pytest[@]}" -n "$workers" --junitxml="$scratch/tests.xml"
grep -o '<testsuite [^>]*' "$scratch/tests.xml" >"$folder/tests.txt" 2>>"$log" || failed=1
grep -aE '^(FAILED|ERROR) ' "$log" >>"$folder/tests.txt"
# Without XLA's deterministic operations, losses differ from one run to the next.
XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_deterministic_ops=true" PYTHON=$python \
    step refilled 60 bash -c 'for mode in equinox install; do
        "$PYTHON" tests/programs/refilled_batch.py $mode $1 $2 >"$0/refilled-$mode.txt" || exit
    done
    cmp "$0"/refilled-{equinox,install}.txt' "$folder" $refills
# Choosing between kernels would take most of the time. The results file says this.
[ "$device" = cpu ] || export XLA_FLAGS="${XLA_FLAGS:-} --xla_gpu_autotune_level=0"
step benchmarks 250 "$python" -m benchmarks --cases "$cases" --rounds "$rounds" \
    --device "$device" --json "$folder/gpu.json"
echo "$SECONDS s in all; results in $folder"
sed -n '2,$p' "$folder/tests.txt"
exit $failed
