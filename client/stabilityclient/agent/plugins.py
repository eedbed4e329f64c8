"""Imports what others add to the agent: the files that ``STABILITY_AGENT_PLUGINS`` names, joined like the PATH.

The agent carries the data of a job: one that can't be used is named in its log, and it goes on without it.
"""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Mapping

from stabilityclient.agent.modules import add_job_path

__all__ = ["VARIABLE", "load"]

VARIABLE = "STABILITY_AGENT_PLUGINS"


def load(environ: Mapping[str, str], log: Callable[[str], None]) -> None:
    """Run every file, before the agent begins."""
    paths = [path for path in environ.get(VARIABLE, "").split(os.pathsep) if path]
    if paths:
        add_job_path()
    for path in paths:
        try:
            runpy.run_path(path)
        except Exception as error:
            log(f"{VARIABLE}: {path} is not used: {type(error).__name__}: {error}"[:500])
