"""Uploads runs that were recorded offline, from their spool folders.

The client's importer reads the spool and speaks the agents' protocol, so the gateway's last-sequence check makes an
import repeatable: what is stored already is not stored again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stabilitybackend.errors import BadRequest

__all__ = ["find_run_folders", "import_folder"]

#: Every run's folder has it (docs/wire.md).
_RUN_FILE = "run.json"


def find_run_folders(folder: Path) -> list[Path]:
    """Return the run folders: ``folder`` itself, or those directly inside it, by name.

    Raises:
        BadRequest: there is none.
    """
    if (folder / _RUN_FILE).is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob(f"*/{_RUN_FILE}")) if folder.is_dir() else []
    if not found:
        raise BadRequest(
            f"{folder} {'has no run folder' if folder.is_dir() else 'is not a folder'}, expected one with {_RUN_FILE} "
            "or a folder of such",
            hint="name the STABILITY_DIR of the job, or one run's folder inside it",
        )
    return found


def import_folder(folder: Path, url: str, api_key: str | None, say: Callable[[str], None]) -> None:
    """Upload all runs in ``folder`` and say what was done, one line a run.

    Raises:
        BadRequest: there is no run in ``folder``.
    """
    raise NotImplementedError
