"""The agent's life: lock, poll, send, report; and leave when the job has ended and everything is confirmed."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from stabilityclient.agent.agent_events import AgentEvents
from stabilityclient.agent.commands import tasks
from stabilityclient.agent.commands.agent_commands import AgentCommands, CommandToRun, Handler
from stabilityclient.agent.commands.downlink import Downlink
from stabilityclient.agent.commands.restart import Restarter
from stabilityclient.agent.facts import FactsReporter
from stabilityclient.agent.folder import make_hello, written
from stabilityclient.agent.gpu.monitor import GpuMonitor, RankProcess
from stabilityclient.agent.gpu.poller import POLL_S
from stabilityclient.agent.modules import load_plugins
from stabilityclient.agent.output import OutputFollower
from stabilityclient.agent.server_watch import ServerWatch
from stabilityclient.agent.sources import Source, Sources
from stabilityclient.agent.statefile import StateFile, read_as
from stabilityclient.agent.upload.records import Record, SpooledEvent
from stabilityclient.agent.upload.spool_cleaner import SpoolCleaner
from stabilityclient.agent.upload.uplink import Callbacks, Uplink
from stabilityclient.agent.watch.checkpoints import CheckpointPoll, CheckpointWatch, Notice
from stabilityclient.agent.watch.deaths import DeathWatch
from stabilityclient.agent.watch.kernel_log import KernelLog, names_our_pids
from stabilityclient.agent.watch.node_health import NodeHealth
from stabilityclient.agent.watch.progress_file import ProgressFile
from stabilityclient.agent.watch.stacks import StackTaker
from stabilityclient.rank_state.slot import STATE_FINISHED
from stabilityclient.secrets.texts import clean_text
from stabilityclient.settings import DEFAULT_DRAIN_S, DEFAULT_FINISH_S, DEFAULT_SPOOL_MIB, DEFAULT_URL, node_name
from stabilityclient.sidecar import LOG_BYTES, read_json
from stabilityclient.wire import Health, Hello

__all__ = ["AgentLog", "AgentService", "UnrecordedReporter"]

#: Seconds between two reports of one rank while its counts grow.
REPORT_S = 10.0

_WHY = {
    errno.ENOSPC: "the disk of the spool was full",
    errno.EDQUOT: "the spool had no room: its quota, STABILITY_SPOOL_MIB or that of the disk, was used up",
    errno.EROFS: "the disk of the spool was read-only",
}


class UnrecordedReporter:
    """Follows the counts of all ranks.

    Args:
        event: appends an event of the agent.
    """

    def __init__(self, event: Callable[[str, int | None, dict[str, Any]], None]) -> None:
        self._event = event
        self._told: dict[str, tuple[tuple[int, int, bool], float]] = {}
        self._dropped = 0

    def poll(self, ranks: Iterable[Source]) -> bool:
        """Report the news: immediately at the first report and at the end of a rank, else now and then.

        Returns:
            Whether records were dropped since the last call: there is no room.
        """
        found = list(ranks)
        dropped = sum(source.slot.dropped for source in found if source.slot is not None)
        short = bool(dropped > self._dropped)
        self._dropped = dropped
        for source in found:
            slot = source.slot
            if slot is None or not (slot.dropped or slot.refused or slot.forked):
                continue
            counts = (slot.dropped, slot.refused, slot.forked)
            before, when = self._told.get(source.info.source, ((0, 0, False), float("-inf")))
            now = time.monotonic()
            if counts == before or not (source.final or now - when >= REPORT_S):
                continue
            self._told[source.info.source] = counts, now
            data = {
                "source": source.info.source,
                "rank": source.info.rank,
                "dropped": slot.dropped,
                "refused": slot.refused,
                "stored": slot.last_seq,
                "forked": slot.forked,
                "why": _WHY.get(slot.no_room) or (os.strerror(slot.no_room) if slot.no_room else ""),
            }
            self._event("unrecorded", slot.step, data)
        return short


#: Seconds between two lines with the same beginning: a server that is away for a week must not fill the disk.
REPEAT_S = 60.0
#: Characters that make two lines the same, and lines that are remembered.
SAME_CHARS = 60
MAX_REMEMBERED = 100


class AgentLog:
    """Writes lines with a time; the same line at most once a minute; the file is emptied when it is too long."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.time) -> None:
        self._stream = stream
        self._now = now
        self._written: dict[str, float] = {}

    def write(self, text: str) -> None:
        """Write one line; never raises."""
        now = self._now()
        key = text[:SAME_CHARS]
        if now - self._written.get(key, -REPEAT_S) < REPEAT_S:
            return
        if len(self._written) >= MAX_REMEMBERED:
            self._written.clear()
        self._written[key] = now
        try:
            fd = self._stream.fileno()
            if os.fstat(fd).st_size > LOG_BYTES:
                os.ftruncate(fd, 0)  # opened for appending: the next line is the first
        except (OSError, ValueError):
            pass  # a terminal or a pipe
        try:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now))
            print(f"{stamp} {clean_text(text)}", file=self._stream, flush=True)
        except (OSError, ValueError):
            pass  # the disk is full: the log matters least


#: Seconds between two polls of the sources: new ones, slots, processes that can't be watched otherwise.
SOURCES_POLL_S = 0.25
#: The slot of a rank whose end wakes the agent is read with each so-manieth poll, until the first rank finishes.
QUIET_POLLS = 3
#: Shortest STABILITY_GPU_POLL_S, seconds: for tests. NVML's values are averages over a tenth of a second or more.
MIN_GPU_POLL_S = 0.1
#: Seconds between two writes of cursor.json while records flow: the server knows its records better, so an older one
#: costs nothing. A finish() that waits for it gets it immediately.
CURSOR_S = 1.0
#: How long the last lines that ranks printed are waited for when all else is delivered, seconds.
LAST_OUTPUT_S = 3.0
#: An agent that finds no rank at all leaves after so long, seconds (it was started by a process that died immediately).
EMPTY_S = 30.0


class AgentService:
    """The agent of one run folder. ``run`` returns when the job has ended and all is confirmed, or its time is up.

    Args:
        folder: run folder.
        environ: STABILITY_URL, STABILITY_API_KEY, STABILITY_DRAIN_S, STABILITY_SPOOL_MIB, STABILITY_NODE,
            STABILITY_KMSG, STABILITY_GPU_POLL_S, STABILITY_AGENT_PLUGINS, STABILITY_AGENT_ALERT_URL and _AFTER_S,
            STABILITY_PROGRESS_FILE, STABILITY_PAUSE_S.
    """

    def __init__(self, folder: Path, environ: dict[str, str]) -> None:
        self._folder = folder
        self._log = AgentLog(sys.stderr)
        load_plugins(environ, self._log.write)
        self._drain_s = _number(environ.get("STABILITY_DRAIN_S"), DEFAULT_DRAIN_S)
        limit = int(_number(environ.get("STABILITY_SPOOL_MIB"), DEFAULT_SPOOL_MIB) * 1024 * 1024)
        node = node_name(environ)
        self._agent_file = StateFile(folder / "agent" / "agent.json")
        self._cursor_file = StateFile(folder / "agent" / "cursor.json")
        before = self._cursor_file.read()
        self._sources = Sources(folder, read_as(before.get("acked"), dict[str, int]))
        self._own = AgentEvents(folder, node, limit, self._log.write)
        self._checkpoints = CheckpointWatch(before.get("checkpoints"))
        self._checkpoint_poll = CheckpointPoll(self._checkpoints, self._checkpoint_news, self._job_over)
        self._reported_deaths: set[str] = read_as(before.get("deaths"), set[str])
        self._kernel = KernelLog(environ=environ)
        self._deaths = DeathWatch(kernel_pids="STABILITY_KMSG" in environ or names_our_pids())
        stacks = StackTaker(folder, self._sources, self._own.event)
        self._restart = Restarter(folder, node, self._sources)
        task: Handler = partial(tasks.carry_out, folder=str(folder), node=node)
        handlers = {"dump_stacks": stacks.carry_out, "restart": self._restart.carry_out, "task": task}
        self._agent_commands = AgentCommands(handlers, self._answer, before.get("orders"), self._remember)
        self._gpus = GpuMonitor(
            lambda kind, data: self._own.event(kind, self._sources.newest_step(), data),
            self._gpu_row,
            self._rank_processes,
            lambda: self._kernel.blind is None,
            poll_s=max(MIN_GPU_POLL_S, _number(environ.get("STABILITY_GPU_POLL_S"), POLL_S)),
        )
        self._health = NodeHealth(
            folder,
            self._sources,
            self._own,
            self._deaths,
            self._kernel,
            limit,
            gpu_of=lambda source: self._gpus.device_of(source.own_pid, source.info.local_rank),
            more_gaps=(self._gpus.gaps, stacks.gaps, self._checkpoint_poll.gaps),
        )
        self._facts = FactsReporter(
            self._sources.ranks,
            lambda kind, data: self._own.event(kind, None, data),
            self._log.write,
            read_as(before.get("launches"), set[str]),
            self._remember,
        )
        setting = environ.get("STABILITY_OUTPUT", "")
        places = read_as(before.get("output"), dict[str, int])
        ranks = self._sources.ranks
        self._output = OutputFollower(self._own.name, node, ranks, setting, places, self._log.write)
        self._spool_cleaner = SpoolCleaner(limit)
        self._unrecorded = UnrecordedReporter(self._own.event)
        self._downlink = Downlink(folder, self._log.write, reject=partial(self._own.event, "command", None))
        self._state: dict[str, Any] = {}
        self._cursor_at = 0.0
        self._dirty = True
        self._finishing_until = 0.0
        self._polls = 0
        self._over_since: float | None = None
        self._started = time.monotonic()
        #: The file that the last Hello was made from.
        self._introduced: tuple[int, int] | None = None
        url = environ.get("STABILITY_URL") or str(read_json(str(folder / "run.json")).get("url") or DEFAULT_URL)
        self._uplink = Uplink(
            url,
            environ.get("STABILITY_API_KEY") or None,
            self._sources,
            self._hello,
            Callbacks(
                command=self._command,
                acked=self._acked,
                state=lambda state, text: self._write_state(state, text, url),
                records=self._passed,
                health=self._health_message,
                output=self._output.message,
            ),
            self._log.write,
        )
        self._progress = ProgressFile(folder, environ, node, self._sources, self._log.write)
        self._watch = ServerWatch(folder, environ, url, node, self._sources, self._uplink, self._log.write)

    async def run(self) -> str:
        """Work until the end; return ``done`` (all confirmed) or ``left`` (time over, the spool stays)."""
        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loop.add_signal_handler(signal.SIGTERM, stopping.set)
        self._own.reserve()
        self._poll()
        parts = (self._uplink, self._gpus, self._checkpoint_poll, self._agent_commands, self._facts, self._output)
        tasks = [asyncio.create_task(part.run()) for part in (*parts, self._watch)]
        outcome = "left"
        try:
            while not stopping.is_set():
                self._poll()
                self._write_cursor(time.monotonic() >= self._cursor_at)
                verdict = self._verdict()
                if verdict is not None:
                    outcome = verdict
                    break
                for task in tasks:
                    if task.done():
                        task.result()  # a defect of the agent: end with its trace in the log, a rank starts a new agent
                try:
                    await asyncio.wait_for(stopping.wait(), SOURCES_POLL_S)
                except asyncio.TimeoutError:
                    pass
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._write_cursor(True)
            self._progress.write(at_once=True)
            self._deaths.close()
            self._kernel.close()
            self._own.close()
            self._output.close()
        if outcome == "done":
            self._spool_cleaner.sweep_all(self._sources)
        self._write_state(outcome, "", "")
        return outcome

    # --- polling -------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        self._polls += 1
        self._sources.discover()
        self._read_kernel()
        for source in self._sources:
            self._poll_source(source)
        short = self._unrecorded.poll(self._sources.ranks())
        self._deaths.poll()
        if self._introduced is not None and written(self._folder) not in (None, self._introduced):
            self._uplink.news.set()
        self._own.flush()
        self._progress.write()
        self._spool_cleaner.sweep(self._sources, tight=short or bool(self._own.error))

    def _discover(self) -> bool:
        """Find new sources; a rank is watched from here on, as it may die before the next poll."""
        fresh = self._sources.discover()
        for source in fresh:
            self._poll_source(source)
        return bool(fresh)

    def _poll_source(self, source: Source) -> None:
        if not source.is_rank:
            source.final = source.info.source != self._own.name or self._job_over()
            return
        was_final = source.final
        try:
            if source.pidfd is None or self._finishing_until or self._polls % QUIET_POLLS == 0:
                source.observe()
            self._dirty |= source.final and not was_final
            self._after_end(source)
        except Exception as error:  # a fault of one folder must not affect the other ranks
            source.trouble = f"the agent fails with it: {type(error).__name__}: {error}"[:300]
            self._log.write(f"{source.info.source}: {source.trouble}")

    def _read_kernel(self) -> None:
        lines = self._kernel.read()
        self._deaths.take_kernel(lines)
        self._gpus.kernel(lines)

    def _after_end(self, source: Source) -> None:
        """Be woken at the end of a rank that lives; report the end of one that does not."""
        if source.alive:
            fd = self._deaths.follow(source)
            if fd is not None:
                asyncio.get_running_loop().add_reader(fd, self._ended, source)
        elif source.ended is None:
            self._report_death(source)

    def _ended(self, source: Source) -> None:
        source.observe()
        self._read_kernel()
        self._report_death(source)

    def _report_death(self, source: Source) -> None:
        if source.pidfd is not None:
            asyncio.get_running_loop().remove_reader(source.pidfd)  # before it is closed: its number may come again
        found = self._deaths.reported(source)
        if found is None:
            return  # its last threads still live: the next poll asks again
        data, source.ended = found
        name = source.info.source
        finished = source.slot is not None and source.slot.state == STATE_FINISHED
        if finished or name in self._reported_deaths or self._opened_again(source):
            return
        self._reported_deaths.add(name)
        self._dirty = True
        step = source.slot.step if source.slot is not None else -1
        if data is None:
            self._own.event("left", step, {"source": name, "rank": source.info.rank})
            return
        data |= {"ordered": self._restart.ordered_end(source)}
        self._own.event("process_death", step, data)
        self._write_cursor(True)  # immediately: the agent that follows a killed one must not report it again
        self._log.write(f"process death: {data['evidence']['text']}")

    def _opened_again(self, source: Source) -> bool:
        """Whether the same process called ``init()`` again: its end is reported once, by its newest source."""
        process, started = (source.info.pid, source.ticks), source.info.started
        ranks = self._sources.ranks()
        return any((each.info.pid, each.ticks) == process and each.info.started > started for each in ranks)

    def _job_over(self) -> bool:
        ranks = self._sources.ranks()
        return bool(ranks) and all(source.over for source in ranks) and not self._agent_commands.busy

    def _verdict(self) -> str | None:
        """Return how the agent ends, None while it continues."""
        now = time.monotonic()
        if not (self._folder / "run.json").exists():
            return "left"  # the folder was removed: nothing is left to deliver
        if not self._sources.ranks():
            return "left" if now - self._started > EMPTY_S else None
        if not self._job_over():
            self._over_since = None
            return None
        if self._over_since is None:
            self._over_since = now
        settled = (
            all(source.safe or source.held for source in self._sources)
            and not self._checkpoints.waits
            and not self._facts.busy
        )
        if settled and self._own.confirmed(self._sources.get(self._own.name)):
            held = any(source.held for source in self._sources)
            if self._output.busy and self._uplink.takes_output and now - self._over_since < LAST_OUTPUT_S:
                return None
            # A rank of a restart may have come in the meantime.
            return None if self._discover() else "left" if held else "done"
        if self._uplink.refused or now - self._over_since > self._drain_s:
            return "left"
        return None

    # --- reporting -------------------------------------------------------------------------------------------------

    def _hello(self) -> Hello:
        self._discover()
        self._introduced = written(self._folder)
        return make_hello(self._folder, self._own.name, self._own.node, self._sources)

    def _health_message(self) -> Health:
        for source in self._sources:
            source.observe()  # an agent that was stopped for a while must not report old slots under the new time
        state = {
            "gpu": self._gpus.reading,
            "frames_sent": self._uplink.frames_sent,
            "records_sent": self._uplink.records_sent,
        }
        return self._health.message(state, self._agent_file.error or self._cursor_file.error)

    def _command(self, command: dict[str, Any], clock_offset_s: float) -> None:
        if not self._agent_commands.take(command, clock_offset_s):
            self._downlink.take(command, clock_offset_s)

    def _answer(self, command: CommandToRun, state: str, detail: str) -> None:
        data = {"command_id": command.command_id, "attempt": command.attempt, "state": state, "detail": detail}
        self._own.event("command", self._sources.newest_step(), data)

    def _remember(self) -> None:
        self._dirty = True
        self._write_cursor(True)

    def _passed(self, source: Source, records: list[Record]) -> None:
        """Look at records about to leave: checkpoints are watched from here on, which is on disk before they leave."""
        if not source.is_rank:
            return
        events = [record for record in records if isinstance(record, SpooledEvent)]
        if any(event.type == "checkpoint" for event in events):
            self._restart.saved(source)
        if any(event.type in ("finish", "preempted") for event in events):
            self._finishing_until = time.monotonic() + DEFAULT_FINISH_S
        if [event for event in events if self._checkpoints.take(event, source.info.world_size)]:
            self._checkpoint_poll.announce()
            self._dirty = True
            self._write_cursor(True)

    def _acked(self) -> None:
        self._dirty = True
        # Immediately when a rank is at its end and nothing is in flight: its finish() waits for this file.
        now = time.monotonic()
        awaited = now < self._finishing_until and all(not source.in_flight for source in self._sources)
        self._write_cursor(awaited or now >= self._cursor_at)

    def _write_cursor(self, now: bool) -> None:
        if not self._dirty or not now:
            return
        self._cursor_at = time.monotonic() + CURSOR_S
        value = {
            "acked": {source.info.source: source.acked for source in self._sources},
            "held": [source.info.source for source in self._sources if source.held],
            "checkpoints": self._checkpoints.state(),
            "deaths": sorted(self._reported_deaths),
            "launches": self._facts.state(),
            "output": self._output.state(),
            "orders": self._agent_commands.state(),
        }
        self._dirty = not self._cursor_file.write(value)

    def _write_state(self, state: str, text: str, url: str) -> None:
        goes_on = state == "connecting" and self._state.get("state") == state
        since = self._state["since"] if goes_on else time.time()
        who = {"pid": os.getpid(), "source": self._own.name}
        self._state = {**who, "state": state, "since": since, "error": text, "url": url}
        self._agent_file.write(self._state)
        if state == "refused":
            self._log.write(f"refused: {text}")

    def _gpu_row(self, values: dict[str, float]) -> None:
        step = self._sources.newest_step()
        if step >= 0:
            self._own.row(step, values)

    def _rank_processes(self) -> list[RankProcess]:
        return [
            RankProcess(source.info.rank or 0, source.own_pid, source.info.local_rank)
            for source in self._sources.newest_ranks()
        ]

    def _checkpoint_news(self, notice: Notice) -> None:
        self._own.event(notice.type, notice.step, notice.data)
        self._dirty = True


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else float(default)
    except ValueError:
        return float(default)
