"""How much hypothesis draws: `HYPOTHESIS_PROFILE=night pytest tests/differential`."""

import os

import hypothesis


_COMMON = {
    "deadline": None,  # a compilation takes as long as it takes
    "print_blob": True,
    "suppress_health_check": [
        hypothesis.HealthCheck.too_slow,
        hypothesis.HealthCheck.data_too_large,
    ],
}
hypothesis.settings.register_profile(
    "ci", max_examples=40, derandomize=True, database=None, **_COMMON
)
hypothesis.settings.register_profile("night", max_examples=4000, **_COMMON)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
