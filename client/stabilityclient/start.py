"""Makes the files of one process start: run folder, spool, slot, ``run.json`` and ``source.json``."""

from __future__ import annotations

import errno
import json
import os

from stabilityclient.arguments import mapping_of, plain
from stabilityclient.rank_state.slot import FLAG_FATAL, STATE_RUNNING, Slot, SlotView, read_slot
from stabilityclient.rank_state.stack_file import StackFile
from stabilityclient.rollback.command_files import make_mailbox
from stabilityclient.sidecar import read_json
from stabilityclient.spool import SpoolWriter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from stabilityclient.settings import ClientSettings

__all__ = [
    "MAX_CONFIG_BYTES",
    "add_config",
    "find_twin",
    "open_source",
    "pid_namespace",
    "run_folder",
    "start_ticks",
    "write_whole",
]

#: Longest config, bytes of JSON: it travels in each Hello, which must stay far below a message's limit.
MAX_CONFIG_BYTES = 1024 * 1024
#: Errors of a file system that can't sync a folder, as some with checkpoints.
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)


def run_folder(settings: ClientSettings, node: str) -> str:
    """Return the folder of the run on this node.

    It is that of the process that started this one as a further rank, where one did.
    Where the job spans nodes the name ends in ``@node``: a folder that nodes share must still have one agent each.
    """
    if settings.folder is not None:
        return settings.folder
    name = settings.run_id if settings.ranks.one_node else f"{settings.run_id}@{node}"
    return os.path.join(settings.dir, name)


def open_source(
    settings: ClientSettings, folder: str, node: str, pid: int, started_ns: int, note: Callable[[str, str], None]
) -> tuple[str, SpoolWriter, Slot, StackFile]:
    """Make everything that this start of a process needs on disk and return (source id, spool, slot, stack file).

    Args:
        note: logs trouble: ``note(place, text)``.

    Raises:
        OSError: the folder can't be made or written, or the disk is full.
    """
    ranks = settings.ranks
    source = f"r{ranks.rank}-{started_ns:x}-{pid}"
    home = os.path.join(folder, "sources", source)
    _make_private(folder)
    for each in ("sources", os.path.join("sources", source), "agent", "commands", "arbiter"):
        os.makedirs(os.path.join(folder, each), 0o700, exist_ok=True)
    make_mailbox(os.path.join(folder, "mailbox"))
    started = started_ns / 1e9
    _write_run(settings, folder, started, lambda text: note("spool", text))
    spool = SpoolWriter(home, settings.spool_bytes, lambda text: note("spool", text))
    slot = Slot(os.path.join(home, "slot"), pid=pid, rank=ranks.rank, world_size=ranks.world_size, started=started)
    stack_file = StackFile(os.path.join(home, "stacks"), settings.dump_signal)
    slot.set_dump_signal(stack_file.dump_signal)
    slot.flag(FLAG_FATAL if stack_file.fatal else 0)
    slot.write_probes()
    twin = find_twin(os.path.join(folder, "sources"), ranks.rank, node, pid)
    if twin is not None:
        note(
            "init()",
            f"process {twin} records rank {ranks.rank} of run {settings.run_id} in {folder} too: the points of "
            "both are mixed. Give each job a STABILITY_RUN_ID of its own, and each rank its RANK and WORLD_SIZE",
        )
    info = {
        "source": source,
        "rank": ranks.rank,
        "world_size": ranks.world_size,
        "local_rank": ranks.local_rank,
        "node": node,
        "pid": pid,
        "started": started,
        "generation": ranks.generation,
        # Distinguishes this process from a later one with the same pid.
        "start_ticks": start_ticks(pid),
        # Where its pid means this process: containers of one node may have one agent together.
        "pid_ns": pid_namespace(),
        # Why no signal brings this process's stacks, None where one does.
        "no_dumps": stack_file.missing,
        # Whether the agent may collect facts of the launch.
        "facts": settings.facts,
    }
    # Last: a folder without source.json is not a source yet, and no agent touches it.
    write_whole(os.path.join(home, "source.json"), json.dumps(info).encode())
    return source, spool, slot, stack_file


def find_twin(sources: str, rank: int, node: str, pid: int) -> int | None:
    """Return the pid of another living process of this node that records the same rank, None without one.

    Two jobs were given one run id, or a launcher restarted a rank without ending the old one.
    """
    for name in os.listdir(sources):
        # r<rank>-<start>-<pid>: most earlier starts need no more than this check.
        start, _, other = name.rpartition("-")
        if not start.startswith(f"r{rank}-") or not other.isdecimal() or int(other) == pid:
            continue
        if not os.path.exists(f"/proc/{other}"):
            continue
        facts = read_json(os.path.join(sources, name, "source.json"))
        seen = read_slot(os.path.join(sources, name, "slot"))
        if facts.get("node") != node or not isinstance(seen, SlotView) or seen.state != STATE_RUNNING:
            continue
        if facts.get("start_ticks") and facts["start_ticks"] == start_ticks(int(other)):
            return int(other)
    return None


def start_ticks(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 where it is gone or /proc is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0


def pid_namespace() -> str:
    """Return in which space of process ids this process lives, empty if unknown."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _make_private(folder: str) -> None:
    """Make the run folder, for its owner alone: it holds texts as the job wrote them, before they are cleaned."""
    os.makedirs(folder, 0o700, exist_ok=True)
    try:
        os.chmod(folder, 0o700)  # an older client made it for everybody
    except OSError:
        pass  # another user's folder: how open it is was that user's choice


def write_whole(path: str, data: bytes, *, durable: bool = False, mode: int = 0o600) -> None:
    """Write a file so that a reader sees the old or the new one, never a half.

    Args:
        durable: it is on the disk when this returns, its name too: the node may be reset next.
        mode: permission to read it, as far as the umask allows; by default the owner alone.
    """
    part = f"{path}.{os.getpid()}.tmp"
    with open(part, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    os.replace(part, path)
    if not durable:
        return
    fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
    finally:
        os.close(fd)


def _write_run(settings: ClientSettings, folder: str, created: float, trouble: Callable[[str], None]) -> None:
    from stabilityclient.secrets.values import clean_config

    path = os.path.join(folder, "run.json")
    before = read_json(path)
    if before and settings.ranks.local_rank != 0:
        return
    facts = {
        "run_id": settings.run_id,
        "project": settings.project,
        "config": _fitting(plain(settings.config), trouble) or {},
        "created": before.get("created", created),
    }
    texts = clean_config({name: getattr(settings, name) for name in ("name", "tags", "notes", "url")})
    write_whole(path, json.dumps(facts | texts).encode())


def add_config(folder: str, values: Mapping[str, Any], trouble: Callable[[str], None]) -> None:
    """Add values to the config of a run folder; its agent sees that the file is another.

    Raises:
        OSError: the folder can't be written.
    """
    path = os.path.join(folder, "run.json")
    facts = read_json(path)
    before = facts.get("config")
    config = _fitting({**(before if isinstance(before, dict) else {}), **plain(mapping_of(values))}, trouble)
    if facts and config is not None and config != before:
        write_whole(path, json.dumps(facts | {"config": config}).encode())


def _fitting(config: dict[str, Any], trouble: Callable[[str], None]) -> dict[str, Any] | None:
    """Return a config without its secrets, None where it is too long."""
    from stabilityclient.secrets.values import clean_config

    config = clean_config(config)
    size = len(json.dumps(config))
    if size <= MAX_CONFIG_BYTES:
        return config
    trouble(f"config has {size} bytes of JSON, expected at most {MAX_CONFIG_BYTES}: it is left out")
    return None
