"""``init()``: the checked settings, then the run with its files, heartbeat thread and agent."""

from __future__ import annotations

import os
import time

from stabilityclient import hooks
from stabilityclient.errors import NotReadyError
from stabilityclient.guard import Guard, under_pytest
from stabilityclient.run import Run
from stabilityclient.run_components import RunComponents
from stabilityclient.settings import ClientSettings, usable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["init"]

#: Seconds that the end of a run that was still open waits for its delivery: its agent continues without it.
ENDS_S = 5.0


def init(
    project: str | None = None,
    name: str | None = None,
    run_id: str | None = None,
    config: Any = None,
    url: str | None = None,
    api_key: str | None = None,
    dir: str | os.PathLike[str] | None = None,
    *,
    tags: Iterable[str] | None = None,
    notes: str | None = None,
    facts: bool | None = None,
) -> Run:
    """Begin to record this process; call it once on each rank. A run that is still open in it ends first.

    Args:
        project: groups runs. name: display name of this run.
        run_id: the same id continues a run after a restart. Default: STABILITY_RUN_ID, else made from the
            launcher's facts so that all ranks agree, else the name with date and a random suffix.
        config: a mapping, Namespace, dataclass or the like; shown with the run. Scalars of NumPy and PyTorch are
            numbers, anything that JSON can't hold is its text.
        url: server (STABILITY_URL, default http://127.0.0.1:8080). api_key: STABILITY_API_KEY.
        dir: folder for the spool (STABILITY_DIR, default ``.stability``); best on the node's own disk.
        tags: short texts to find the run by. notes: free text. Both can be changed on the page.
        facts: whether commit, command line, versions and hosts are sent, without secrets (STABILITY_FACTS, default on).

    Returns:
        The run. With STABILITY_MODE=disabled, or when neither the folder nor the system's temporary one can be written,
        one that does nothing.

    Raises:
        SettingError: an argument is wrong. A wrong variable of the environment is logged, and its default holds.
            Nothing else is raised, unless under pytest.
    """
    guard = Guard(strict=under_pytest(os.environ))
    given = {
        "project": project, "name": name, "run_id": run_id, "config": config, "url": url, "api_key": api_key,
        "dir": dir, "tags": tags, "notes": notes, "facts": facts,
    }  # fmt: skip
    environ = os.environ if guard.strict else usable(os.environ, lambda text: guard.note("init()", text, text))
    settings = ClientSettings(given, environ, _stamp)
    run = Run(settings, guard)
    if settings.mode == "disabled":
        return run
    _end_open_run(settings, guard)
    try:
        try:
            parts = _components(settings, guard, run)
        except OSError as error:
            parts = _components_elsewhere(settings, guard, run, error)
        run._open(parts)
    except Exception as error:
        text = f"nothing of this process will be recorded: {settings.dir} can't be used ({error})"
        guard.caught("init()", NotReadyError(text))
    return run


def _end_open_run(settings: ClientSettings, guard: Guard) -> None:
    """End the runs of this rank that are open in this process: a cell that runs again begins a new one."""
    for before in hooks.open_runs():
        if isinstance(before, Run) and before._settings.ranks.rank == settings.ranks.rank:
            guard.note("init()", f"run {before.run_id} was open in this process and is ended: run.finish() does that")
            before.finish(ENDS_S)


def _components(settings: ClientSettings, guard: Guard, run: Run) -> RunComponents:
    return RunComponents(settings, guard, run._restoring.report, lambda: (run.logged_step, run.logged_at))


def _components_elsewhere(settings: ClientSettings, guard: Guard, run: Run, error: OSError) -> RunComponents:
    """Use the system's temporary folder, in a part that is this user's alone.

    Raises:
        OSError: it is no better.
    """
    import tempfile

    folder = os.path.join(tempfile.gettempdir(), f"stability-{os.geteuid()}")
    if settings.folder is not None or settings.dir == folder:
        raise error
    os.makedirs(folder, 0o700, exist_ok=True)
    if os.lstat(folder).st_uid != os.geteuid() or os.path.islink(folder):
        raise error
    refused = settings.dir
    settings.spool_in(folder)
    parts = _components(settings, guard, run)
    guard.note("spool", f"{refused} can't be used ({error.strerror or error}): the run is spooled in {folder}")
    return parts


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + os.urandom(2).hex()
