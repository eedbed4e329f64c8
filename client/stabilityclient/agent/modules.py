"""Module search of the agent: Python's own and installed modules first, those of the job only for missing ones.

The folders of a job hold files named uuid.py, secrets.py or websockets.py, which must not become the agent's. Yet the
packages that it needs may be on the job's path alone: a user's site, ``pip install --target`` with PYTHONPATH, a PEX.
"""

from __future__ import annotations

import glob
import os
import runpy
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import PathFinder

from stabilityclient.sidecar import JOB_PATH_VARIABLE

__all__ = ["PLUGINS_VARIABLE", "load_plugins", "search_job_path"]

#: Module -> its distribution, as its metadata is named on disk.
NEEDED = {"msgspec": "msgspec", "websockets": "websockets", "pynvml": "nvidia_ml_py", "obstore": "obstore"}


def search_job_path() -> None:
    """Append the folders of packages of NEEDED that are installed nowhere else to ``sys.path``."""
    for module, distribution in NEEDED.items():
        if PathFinder.find_spec(module) is None:
            sys.path += [entry for entry in _job_path() if _installed(entry, distribution)][:1]


def _job_path() -> list[str]:
    entries = os.environ.get(JOB_PATH_VARIABLE, "").split(os.pathsep)
    return [entry for entry in entries if entry and entry not in sys.path]


def _installed(entry: str, distribution: str) -> bool:
    """Whether a distribution was installed there; a zip (a zipapp) may hold anything."""
    return os.path.isfile(entry) or bool(glob.glob(f"{glob.escape(entry)}/{distribution}[-.]*-info"))


#: Files that the agent runs before it begins, separated as paths are.
PLUGINS_VARIABLE = "STABILITY_AGENT_PLUGINS"


def load_plugins(environ: Mapping[str, str], log: Callable[[str], None]) -> None:
    """Run every file of PLUGINS_VARIABLE; one that raises is logged and left out."""
    paths = [path for path in environ.get(PLUGINS_VARIABLE, "").split(os.pathsep) if path]
    if paths:
        sys.path += _job_path()  # last: plug-ins may import modules of the job
    for path in paths:
        try:
            runpy.run_path(path)
        except Exception as error:
            log(f"{PLUGINS_VARIABLE}: {path} is not used: {type(error).__name__}: {error}"[:500])
