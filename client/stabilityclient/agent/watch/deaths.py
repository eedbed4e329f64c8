"""Notices within an instant when a rank's process is gone, and reports how it ended, with the evidence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stabilityclient.agent.sources import Source
from stabilityclient.agent.watch.exits import ExitStatus, exit_status, has_ended, open_process, signal_name
from stabilityclient.agent.watch.safe_files import read_part
from stabilityclient.rank_state.slot import STATE_EXCEPTION, STATE_FINISHED, STATE_LEFT, STATE_NAMES, STATE_RUNNING

__all__ = ["CRASH_SIGNALS", "DeathWatch", "OomCounters", "counter_file", "death_of", "fatal_text"]

#: A rank that is killed within so long of a move of its counter was killed for memory, seconds: a process of
#: hundreds of GiB needs a while to give them back.
KILL_WINDOW_S = 10.0
#: Seconds between two checks of which group a rank is in: launchers move processes right after their start.
CGROUP_POLL_S = 10.0
#: Counters read; a node has as many groups as ranks at most.
MAX_COUNTERS = 256

_V2_FILES = ("memory.events.local", "memory.events")
_V1_FILE = "memory.oom_control"


@dataclass(slots=True)
class _KillCounter:
    value: int
    #: (monotonic seconds, kills) that belong to no death yet.
    moves: list[tuple[float, int]]


class OomCounters:
    """The counters of the groups of the ranks on this node.

    Args:
        find: returns the counter's file for a pid, None where there is none.
        now: monotonic seconds.
    """

    def __init__(
        self, find: Callable[[int], str | None] | None = None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._find = find or counter_file
        self._now = now
        self._counters: dict[str, _KillCounter] = {}
        self._files: dict[int, tuple[float, str | None]] = {}

    def follow(self, pid: int) -> None:
        """Know the group of a living process; cheap to call at each poll."""
        now = self._now()
        at, known = self._files.get(pid, (-CGROUP_POLL_S, None))
        if now - at < CGROUP_POLL_S:
            return
        path = self._find(pid) or known
        self._files[pid] = (now, path)
        if path is not None and path not in self._counters and len(self._counters) < MAX_COUNTERS:
            value = _count(path)
            if value is not None:
                self._counters[path] = _KillCounter(value, [])

    def poll(self) -> None:
        """Read all counters."""
        now = self._now()
        for path, counter in self._counters.items():
            value = _count(path)
            if value is not None and value > counter.value:
                counter.moves.append((now, value - counter.value))
            counter.value = counter.value if value is None else value
            counter.moves = [(at, kills) for at, kills in counter.moves if now - at <= KILL_WINDOW_S]

    def kill_of(self, pid: int) -> dict[str, object] | None:
        """Return the kernel's evidence that ``pid`` was killed for memory a moment ago; each kill counts for one death.

        Call it for a process that a SIGKILL ended, or whose end was not seen.
        """
        path = self._files.get(pid, (0.0, None))[1]
        counter = self._counters.get(path or "")
        if path is None or counter is None or not counter.moves:
            return None
        at, kills = counter.moves.pop(0)
        if kills > 1:
            counter.moves.insert(0, (at, kills - 1))
        return {"source": "cgroup", "counter": path, "kills": kills, "seconds_ago": round(self._now() - at, 2)}

    def forget(self, pid: int) -> None:
        """The process has ended and reported."""
        _, path = self._files.pop(pid, (0.0, None))
        if path is not None and all(path != other for _, other in self._files.values()):
            self._counters.pop(path, None)


def counter_file(pid: int, proc: Path = Path("/proc")) -> str | None:
    """Return the file with the kills for memory of the control group of ``pid``, None where none can be read.

    In a container the mount shows a part of the tree only: its root in ``mountinfo`` is taken off the group's path.
    """
    try:
        groups = (proc / str(pid) / "cgroup").read_text()
        mounts = (proc / "self" / "mountinfo").read_text()
    except OSError:
        return None
    for path in _candidates(groups, mounts):
        if _count(path) is not None:
            return path
    return None


def _candidates(groups: str, mounts: str) -> Iterator[str]:
    version_1 = version_2 = None
    for line in groups.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            version_2 = group
        elif "memory" in controllers.split(","):
            version_1 = group
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        root, point = _unescaped(fields[3]), _unescaped(fields[4])
        if kind[0] == "cgroup" and "memory" in kind[2].split(",") and version_1 is not None:
            yield os.path.join(point, _below(version_1, root), _V1_FILE)
        elif kind[0] == "cgroup2" and version_2 is not None:
            for name in _V2_FILES:
                yield os.path.join(point, _below(version_2, root), name)


def _below(group: str, root: str) -> str:
    """Return a group's path relative to the mount of its tree; the mount itself for a group outside."""
    if root != "/" and (group == root or group.startswith(f"{root}/")):
        group = group[len(root) :]
    elif root != "/" or "/.." in group:
        return ""
    return group.lstrip("/")


def _unescaped(text: str) -> str:
    return text.replace("\\040", " ")


def _count(path: str) -> int | None:
    try:
        with open(path) as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill" and value.strip().isdigit():
                    return int(value)
    except OSError:
        pass
    return None


#: Signals that a process brings upon itself; all others come from outside.
CRASH_SIGNALS = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP}
)
#: Longest wait between the end of the main thread and that of the process, seconds: freeing the memory takes a while.
BURIAL_S = 1.0
#: Bytes of the end of the file ``stacks`` that are searched for faulthandler's text, and sent.
FATAL_TAIL_BYTES = 256 * 1024
FATAL_CHARS = 8_000
#: How long a line of the kernel's log about a kill for memory may be older than the death, seconds.
KERNEL_LINE_S = 30.0

_FATAL = "Fatal Python error"


class DeathWatch:
    """The ends of the ranks of this node.

    Args:
        counters: kills for memory by control group.
        kernel_pids: whether process ids in the kernel's log are those that are visible (not in most containers).

    Attributes:
        trouble: why the ends of processes are seen late and without their status; empty when all is well.
    """

    def __init__(self, counters: OomCounters | None = None, *, kernel_pids: bool = True) -> None:
        self._kernel_pids = kernel_pids
        self._counters = counters or OomCounters()
        self._watched: list[Source] = []
        self._oom_lines: dict[int, tuple[float, str]] = {}
        self.trouble = ""

    def follow(self, source: Source) -> int | None:
        """Watch a rank; return a file descriptor that becomes readable at its end, at the first call only.

        Call it at each poll for every rank that lives.
        """
        if source.elsewhere:
            return None
        self._counters.follow(source.info.pid)
        if source.followed:
            return None
        source.followed = True
        try:
            source.pidfd = open_process(source.info.pid, source.ticks)
        except OSError as error:
            self.trouble = f"processes can't be watched ({error.strerror or error}): a rank's exit code stays unknown"
        if source.pidfd is not None:
            self._watched.append(source)
        return source.pidfd

    def poll(self) -> None:
        """Read the counters of kills for memory."""
        self._counters.poll()

    def take_kernel(self, lines: Iterable[Any]) -> None:
        """Remember the processes that were killed for memory by the kernel's log (lines of KernelLog)."""
        for line in lines:
            if self._kernel_pids and line.what == "oom" and line.pid is not None:
                self._oom_lines[line.pid] = (line.time, line.text)
        while len(self._oom_lines) > 100:
            del self._oom_lines[next(iter(self._oom_lines))]

    def reported(self, source: Source) -> tuple[dict[str, Any] | None, ExitStatus] | None:
        """Return how a rank ended, once; None while it lives, or its last threads do.

        Returns:
            The data of its ``process_death`` event (None: it left in order), and its exit status.
        """
        if source.alive:
            return None
        fd = source.pidfd
        if source.gone_at is None:
            source.gone_at = time.monotonic()
        if fd is not None and not has_ended(fd) and time.monotonic() - source.gone_at < BURIAL_S:
            return None
        if source.elsewhere:
            status = ExitStatus(None, None, "none", "it ran in another container (PID namespace)")
        else:
            status = exit_status(fd, source.info.pid, source.ticks)
        self._counters.poll()
        data = death_of(source, status, self._oom_evidence(source, status), fatal_text(source))
        self._counters.forget(source.info.pid)
        self._close(source)
        return data, status

    def close(self) -> None:
        """Close all handles."""
        for source in list(self._watched):
            self._close(source)

    def _oom_evidence(self, source: Source, status: ExitStatus) -> dict[str, Any] | None:
        pid, slot = source.info.pid, source.slot
        if status.how != "none" and status.signal != signal.SIGKILL:
            return None  # the process killed for memory was a child, if any
        if status.how == "none" and slot is not None and slot.state != STATE_RUNNING:
            return None  # it still reported how it left: no process killed for memory does
        when, text = self._oom_lines.get(pid, (0.0, ""))
        if text and time.time() - when <= KERNEL_LINE_S:
            self._counters.kill_of(pid)  # the same kill: it explains no other death
            return {"source": "kernel log", "line": text}
        return self._counters.kill_of(pid)

    def _close(self, source: Source) -> None:
        if source.pidfd is not None:
            os.close(source.pidfd)
            source.pidfd = None
            self._watched.remove(source)


def fatal_text(source: Source) -> str | None:
    """Return the text that faulthandler wrote into ``stacks`` when the process crashed, None where there is nothing."""
    try:
        data, _ = read_part(source.folder / "stacks", -1, FATAL_TAIL_BYTES)
    except OSError:
        return None
    text = data.decode("utf-8", "replace")
    at = text.rfind(_FATAL)
    return text[at : at + FATAL_CHARS] if at >= 0 else None


def death_of(
    source: Source, status: ExitStatus, oom: dict[str, Any] | None, fatal: str | None
) -> dict[str, Any] | None:
    """Return the data of a ``process_death`` event (docs/wire.md), None when the process left in order.

    Args:
        source: a rank that is gone, whose slot was read after its end.
        status: how it ended. oom: the kernel's evidence of a kill for memory. fatal: faulthandler's text.
    """
    slot = source.slot
    state = None if slot is None else slot.state
    if state == STATE_FINISHED:
        return None
    exception = slot.exception if slot is not None and state == STATE_EXCEPTION else ""
    found = _judged(state, exception, status, oom, fatal)
    if found is None:
        return None
    cause, sentence = found
    where = "" if slot is None or not slot.phase else f", in phase {slot.phase}"
    step = "" if slot is None or slot.step < 0 else f" at step {slot.step}"
    who = f"rank {source.info.rank} (pid {source.info.pid})"
    evidence: dict[str, Any] = {
        "text": f"{who} {sentence}{where}{step}",
        "state": "unknown" if state is None else STATE_NAMES[state],
        "beat": None if slot is None else slot.beat,
        "oom_kills": 0 if oom is None else oom.get("kills", 1),
    }
    if exception:
        evidence["exception"] = exception
    return {
        "source": source.info.source,
        "rank": source.info.rank,
        "pid": source.info.pid,
        "last_phase": "" if slot is None else slot.phase,
        "cause": cause,
        "signal": status.signal,
        "signal_name": None if status.signal is None else signal_name(status.signal),
        "exit_code": status.exit_code,
        "oom": oom,
        "fatal": fatal,
        "how": _how(status, oom, slot is not None),
        "evidence": evidence,
    }


def _judged(
    state: int | None, exception: str, status: ExitStatus, oom: dict[str, Any] | None, fatal: str | None
) -> tuple[str, str] | None:
    """Return the cause and the event, None for a process that left in order."""
    if oom is not None:
        proof = "its log names the process" if oom["source"] == "kernel log" else "its group's counter moved"
        return "oom_kill", f"was killed by the kernel for memory ({proof})"
    name = "" if status.signal is None else signal_name(status.signal)
    # Ctrl-C: Python raises an exception, and then ends by the signal.
    ctrl_c = exception.startswith("KeyboardInterrupt") and (status.signal == signal.SIGINT or status.exit_code == 130)
    if exception and not ctrl_c:
        return "exception", f"is ended by an uncaught exception: {exception}"
    if (status.signal in CRASH_SIGNALS) or (fatal is not None and status.signal is None and status.exit_code is None):
        first = (fatal or "").split("\n", 1)[0]
        return "crash", f"crashed with {name or 'a fatal error'}" + (f": {first}" if first else " in native code")
    if status.signal is not None:
        sender = _SENDERS.get(status.signal, "somebody")
        return "signal", f"was killed by {name} from outside ({sender})"
    if ctrl_c:
        return "signal", "was ended by SIGINT from outside (Ctrl-C, scheduler)"
    if status.exit_code is not None:
        code = status.exit_code
        shell = f" (128 + {signal_name(code - 128)}: a child's end, as shells report it)" if 128 < code < 193 else ""
        return ("exit_code", f"left with exit code {code} without finish(){shell}") if code else None
    if state == STATE_LEFT:
        return None
    guess = "killed from outside (kill -9, scheduler) or crashed in native code"
    return "unknown", f"is gone without a trace: {guess}; which one is not known, because {status.why}"


_SENDERS: dict[int, str] = {
    signal.SIGKILL: "kill -9, scheduler, launcher",
    signal.SIGTERM: "scheduler or launcher, which end the other ranks so when one is gone",
    signal.SIGINT: "Ctrl-C, scheduler",
    signal.SIGHUP: "its terminal was closed",
}


def _how(status: ExitStatus, oom: dict[str, Any] | None, has_slot: bool) -> str:
    if status.how != "none":
        return status.how
    if oom is not None and oom["source"] == "kernel log":
        return "kernel log"
    return "slot" if has_slot else "none"
