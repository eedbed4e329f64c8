"""Python runs this at its start, as the drill put its folder first on PYTHONPATH: it starts the probe.

It runs in the job's processes, with the job's Python and packages: no first-party import but the probe's.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_next_one() -> None:
    """Run the ``sitecustomize`` that this one hides, where the machine has one."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [path for path in sys.path if os.path.abspath(path or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_the_next_one()
if os.environ.get("STABILITY_DRILL_PROBE"):
    importlib.import_module("stabilitydrill.hooks").install(os.environ["STABILITY_DRILL_PROBE"])
