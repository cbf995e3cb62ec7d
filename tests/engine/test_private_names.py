"""Without any one private name of JAX or Equinox, calls are right all the same.

Promise 34 of docs/reliability.md.
"""

import pytest

from tests.support.programs import run_program


# Names that only exporting or the tools use are taken away in their own tests; here
# each of them must make no difference.
def test_each_private_name_can_be_missing():
    """Taken away in turn, as in another version: calls are right all the same."""
    out = run_program("private_names.py", timeout=550)
    outcomes = dict(line.split() for line in out.stdout.splitlines())
    assert len(outcomes) >= 3
    failed = [name for name, code in outcomes.items() if code != "0"]
    assert not failed, (failed, out.stderr[-4000:])


@pytest.mark.parametrize("version", ["0.99.0", "1.0.0"])
def test_a_jax_from_the_future(version):
    """Another version of JAX is no reason to warn or to compute anything."""
    assert run_program("future_jax.py", version).stderr == ""


def test_an_equinox_that_flattens_fields_by_name():
    """The order of fields is JAX's, whatever that is, in each call."""
    out = run_program("flattened_by_name.py")
    assert out.stdout.splitlines() == ["106 2 100"] * 4
