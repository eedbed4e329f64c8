"""Uploads runs that were recorded offline, from their spool folders.

The client's importer reads the spool and speaks the agents' protocol, so the gateway's last-sequence check makes an
import repeatable: what is stored already is not stored again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stabilitybackend.errors import BadRequest

__all__ = ["Imported", "find_run_folders", "import_runs"]

#: Every run's folder has it (docs/wire.md).
_RUN_FILE = "run.json"


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one folder.

    Args:
        folder: of the run.
        run_id: empty if it failed.
        records: rows and events of the folder that the server holds now.
        sent: those of them that it did not hold before.
        damaged: those that could not be read from the spool.
        problem: why it failed; empty if it did not.
    """

    folder: Path
    run_id: str = ""
    records: int = 0
    sent: int = 0
    damaged: int = 0
    problem: str = ""


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


async def import_runs(
    folders: Sequence[Path],
    url: str,
    api_key: str | None,
    progress: Callable[[Path, int, int], None],
) -> AsyncIterator[Imported]:
    """Upload run after run and yield what became of each; one that fails does not stop the others.

    Args:
        folders: from ``find_run_folders``.
        url: the server.
        api_key: of a key that may send data; None where none is needed.
        progress: called now and then with the folder, the records confirmed and the records read so far.
    """
    # Only here: the backend knows no other part of the client than its wire schema.
    from stabilityclient.agent.importer import upload
    from stabilityclient.errors import StabilityError

    for folder in folders:

        def moved(done: int, seen: int, folder: Path = folder) -> None:
            progress(folder, done, seen)

        try:
            report = await upload(folder, url, api_key, moved)
        except StabilityError as error:
            yield Imported(folder, problem=str(error))
        else:
            yield Imported(folder, report.run_id, report.records, report.sent, report.damaged)
