"""``init()``: checks the settings, makes the files, starts the heartbeat thread and the agent, and returns the run."""

from __future__ import annotations

import os
import sys
import time

from stabilityclient import hooks
from stabilityclient.errors import NotReadyError
from stabilityclient.guard import Guard, under_pytest
from stabilityclient.run import Run
from stabilityclient.run_components import RunComponents
from stabilityclient.settings import resolve, usable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from stabilityclient.identity import RankIdentity
    from stabilityclient.rollback.arbiter import Arbiter
    from stabilityclient.settings import ClientSettings
    from stabilityclient.spool import SpoolWriter

__all__ = ["init"]

#: Seconds that the end of a run that was still open waits for its delivery: its agent goes on without it.
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
        project: groups runs. name: what people call this run.
        run_id: the same id continues a run after a restart. Default: STABILITY_RUN_ID, else made from the
            launcher's facts so that all ranks agree, else the name with date and a random suffix.
        config: a mapping, Namespace, dataclass or the like; shown with the run. Scalars of NumPy and PyTorch are
            numbers, anything that JSON can't hold is its text.
        url: server (STABILITY_URL, default http://127.0.0.1:8080). api_key: STABILITY_API_KEY.
        dir: folder for the spool (STABILITY_DIR, default ``.stability``); best on the node's own disk.
        tags: short texts to find the run by. notes: what people should know of it. Both can be changed on the page.
        facts: whether commit, command line, versions and hosts are sent, without secrets (STABILITY_FACTS, default on).

    Returns:
        The run. With STABILITY_MODE=disabled, or when neither the folder nor the system's temporary one can be written,
        one that does nothing.

    Raises:
        SettingError: an argument is wrong. A wrong variable of the environment is logged, and its default holds.
            Nothing else is raised, unless under pytest.
    """
    guard = Guard(strict=under_pytest(os.environ))
    settings = resolve(
        project=project,
        name=name,
        run_id=run_id,
        config=config,
        url=url,
        api_key=api_key,
        dir=dir,
        environ=os.environ if guard.strict else usable(os.environ, lambda text: guard.note("init()", text, text)),
        stamp=_stamp,
        tags=tags,
        notes=notes,
        facts=facts,
    )
    run = Run(settings, guard)
    if settings.mode == "disabled":
        return run
    _end_open_run(settings, guard)
    try:
        try:
            parts = _make_components(settings, guard, run)
        except OSError as error:
            parts = _make_elsewhere(settings, guard, run, error)
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


def _make_elsewhere(settings: ClientSettings, guard: Guard, run: Run, error: OSError) -> RunComponents:
    """Use the system's temporary folder, in a part of it that is this user's alone.

    Raises:
        OSError: it is no better.
    """
    import tempfile

    place = os.path.join(tempfile.gettempdir(), f"stability-{os.geteuid()}")
    if settings.folder is not None or settings.dir == place:
        raise error
    os.makedirs(place, 0o700, exist_ok=True)
    if os.lstat(place).st_uid != os.geteuid() or os.path.islink(place):
        raise error
    refused, settings.dir = settings.dir, place
    parts = _make_components(settings, guard, run)
    guard.note("spool", f"{refused} can't be used ({error.strerror or error}): the run is spooled in {place}")
    return parts


def _make_components(settings: ClientSettings, guard: Guard, run: Run) -> RunComponents:
    from stabilityclient.identity import RankIdentity, hand_down
    from stabilityclient.rank_state.end_signals import EndSignals
    from stabilityclient.rank_state.heartbeat import HeartbeatThread
    from stabilityclient.rank_state.probe import Probe
    from stabilityclient.rollback.arbiter import arbiter_for
    from stabilityclient.rollback.boundary import Boundary
    from stabilityclient.sidecar import Sidecar
    from stabilityclient.start import find_twin, open_source, run_folder

    node = settings.node
    parts = RunComponents()
    parts.folder = run_folder(settings, node)
    parts.source, parts.spool, parts.slot, parts.stack_file = open_source(
        settings, parts.folder, node, os.getpid(), time.time_ns(), guard.note
    )
    home = os.path.join(parts.folder, "sources", parts.source)
    parts.probe = Probe(os.path.join(parts.folder, "probe"), os.path.join(home, "probe.json"), parts.slot)
    ranks = settings.ranks

    def twin() -> int | None:
        return find_twin(os.path.join(parts.folder, "sources"), ranks.rank, node, os.getpid())

    identity = RankIdentity(ranks, twin)

    def arbiter(command_id: str, attempt: int) -> Arbiter:
        return arbiter_for(parts.folder, ranks.local_world_size >= identity.world_size, command_id, attempt)

    report = run._restoring.report
    parts.boundary = Boundary(parts.folder, ranks.rank, ranks.world_size, arbiter, report, identity=identity)
    hand_down(os.environ, settings.run_id, parts.folder)
    parts.sidecar = None
    if settings.mode == "online":
        parts.sidecar = Sidecar(parts.folder, settings.url, settings.api_key, settings.drain_s)
        if ranks.local_rank == 0:
            try:
                parts.sidecar.start()
            except NotReadyError as error:
                guard.note("agent", str(error))  # the records stay in the spool; the heartbeat thread tries again
    parts.end_signals = EndSignals(os.environ, settings.dump_signal)
    parts.heartbeat = HeartbeatThread(
        parts.slot,
        parts.spool,
        parts.sidecar,
        parts.probe,
        guard,
        ranks.local_rank,
        ranks.world_size,
        lambda: (run.logged_step, run.logged_at),
        parts.end_signals,
    )
    if ranks.local_rank == 0 and settings.facts:  # those of one node compute with the same
        parts.environment = _environment(parts.spool, identity)
    parts.heartbeat.start()
    return parts


def _environment(spool: SpoolWriter, identity: RankIdentity) -> Callable[[], None]:
    """Return what reports the environment; files are read here: a disk that hangs must not stop the heartbeat."""
    from stabilityclient.environment import environment, git_commit

    git = git_commit(getattr(sys.modules.get("__main__"), "__file__", None))

    def report() -> None:
        found = environment(os.environ, identity.world_size, git)
        spool.append_event("environment", None, time.time(), {**found})

    return report


def _stamp() -> str:
    return time.strftime("%Y%m%d-%H%M%S-") + os.urandom(2).hex()
