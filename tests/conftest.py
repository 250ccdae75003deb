"""What holds for every test: Hypothesis settings, and the shared plug-ins (which see)."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["pytester", "support.brokers", "support.no_network"]

# Machines differ, so no example has a deadline of its own (pytest-timeout bounds the test). In CI the same commit
# always tries the same examples; elsewhere every run tries new ones and prints what reproduces a failure.
settings.register_profile("citegauge", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI")))
settings.load_profile("citegauge")
