"""Costs of a whole process: memory, and import time."""

from benchmarks._suite import DEVICES, FUNCTION, load_bench, make_case, Ready


class Memory:
    """Peak memory of a process that builds and calls one contender."""

    params = (FUNCTION, ("identity", "mlp_32", "adam_103_leaves"), DEVICES)
    param_names = ("contender", "case", "device")

    def setup(self, contender, case, device):
        # `ready` would call another contender too.
        self.call = make_case(case, (contender,), device)[contender]

        self.steps = load_bench().case_info(case).steps

    def peakmem_calls(self, *params):
        Ready(self.call, self.steps).blocked()


class Import:
    """Seconds to import, in fresh processes that have imported its requirements."""

    params = (("jax", "equinox after jax", "eqx_fastjit after equinox"),)
    param_names = ("module",)
    number = 1

    def timeraw_import(self, module):
        """Imports a name of eqx_fastjit, whose modules load on first use."""
        return {
            "jax": ("import jax", ""),
            "equinox after jax": ("import equinox", "import jax"),
            "eqx_fastjit after equinox": (
                "from eqx_fastjit import filter_jit",
                "import equinox",
            ),
        }[module]


class ImportAlone:
    """Seconds to import, in fresh processes, without using any name."""

    number = 1

    def timeraw_import(self):
        return "import eqx_fastjit"
