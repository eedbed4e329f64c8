"""How the server's process is set up before it serves."""

from __future__ import annotations

import subprocess
import sys

_LOOKED_AT = """
import gc
from stabilitybackend.app import create_app
from stabilitybackend.cli.serving import spare_the_collector
before = len(gc.get_objects())
spare_the_collector()
print(before > 20_000, len(gc.get_objects()) < 500)
"""


def test_what_the_start_made_is_not_looked_at_by_the_collector_of_cycles() -> None:
    said = subprocess.run([sys.executable, "-c", _LOOKED_AT], capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.split() == ["True", "True"]
