"""Where the agent finds modules: Python's own and the installed ones first, those of the job only where one is missing.

The folders of a job hold files named uuid.py, secrets.py or websockets.py, which must not become the agent's. Yet the
packages that it needs may be on the job's path alone: a user's site, ``pip install --target`` with PYTHONPATH, a PEX.
"""

from __future__ import annotations

import glob
import os
import sys
from importlib.machinery import PathFinder

from stabilityclient.sidecar import JOB_PATH_VARIABLE

__all__ = ["add_job_path", "search_job_path"]

#: Module -> its distribution, as its metadata is named on disk.
NEEDED = {"msgspec": "msgspec", "websockets": "websockets", "pynvml": "nvidia_ml_py", "obstore": "obstore"}


def search_job_path() -> None:
    """Add to ``sys.path``, last, what holds a package of NEEDED that is installed nowhere else."""
    for module, distribution in NEEDED.items():
        if PathFinder.find_spec(module) is None:
            sys.path += [entry for entry in _job_path() if _installed(entry, distribution)][:1]


def add_job_path() -> None:
    """Add all of the job's path to ``sys.path``, last: plug-ins may import what is beside the job."""
    sys.path += _job_path()


def _job_path() -> list[str]:
    entries = os.environ.get(JOB_PATH_VARIABLE, "").split(os.pathsep)
    return [entry for entry in entries if entry and entry not in sys.path]


def _installed(entry: str, distribution: str) -> bool:
    """Whether a distribution was installed there; a zip (a zipapp) may hold anything."""
    return os.path.isfile(entry) or bool(glob.glob(f"{glob.escape(entry)}/{distribution}[-.]*-info"))
