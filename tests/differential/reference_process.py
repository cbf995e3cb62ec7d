"""A process with the reference for its engine: a program a line in, outcomes out.

What it answers is compared with the native engine in the process of the tests. JSON has
no tuples and no NaN of its own, so both sides are compared as JSON.
"""

import json
import os
import subprocess
import sys

from tests.support.programs import ROOT


class Reference:
    """The process, which runs until it is closed."""

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.differential.reference_process"],
            cwd=ROOT,
            env={**os.environ, "EQX_FASTJIT_ENGINE": "python", "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, program):
        self.process.stdin.write(json.dumps(program) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def close(self):
        self.process.communicate(timeout=60)


def main():
    import warnings

    import jax

    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    warnings.simplefilter("ignore")

    from eqx_fastjit import filter_jit
    from tests.differential.outcomes import run

    for line in sys.stdin:
        print(json.dumps(run(json.loads(line), filter_jit)), flush=True)


if __name__ == "__main__":
    main()
