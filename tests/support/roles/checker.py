"""What must hold of every run of a server of several processes, whoever was killed meanwhile."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from redis import Redis

from stabilitybackend.base.keys import RunKeys
from stabilitybackend.base.streams import stream_order
from stabilitybackend.runs.backtest import backtest
from stabilitybackend.storage.archive.cache import ByteCache
from stabilitybackend.storage.archive.location import open_location
from stabilitybackend.storage.archive.part import Part, PartReader
from stabilityclient.node_frames import frames_in
from stabilityclient.wire import Frame, PointsBlock
from support.roles.planted import ACCEPTED

__all__ = ["ENDS", "OF_TIME", "Checker"]

#: Kinds that are found from frames alone; silence and death are judged by time.
OF_TIME = {"hang", "agent_lost", "process_death", "gpu_fault"}
#: Kinds that are found by comparing runs, beside a run's own frames.
_BESIDE = {"shared_data"}
#: States in which an order ends.
ENDS = {"done", "failed", "rejected", "expired", "cancelled"}


class Checker:
    """Compares what the server holds with what the jobs wrote down; what is wrong is a sentence each.

    Args:
        redis: of the server, at rest. archive: its folder or URL.
        value_of: run id, attempt, step -> what the job logged.
        newest_may_be_lost: a power cut or a failover took the newest writes of Redis: what was sent then may be sent
            again under another name.
    """

    def __init__(
        self, redis: Redis, archive: Path | str, value_of: Callable[[str, int, int], float], *, newest_may_be_lost: bool
    ) -> None:
        self._newest_may_be_lost = newest_may_be_lost
        self._redis = redis
        self._archive = open_location(archive)
        self._value_of = value_of
        self.wrong: list[str] = []
        #: What was compared.
        self.seen: Counter[str] = Counter()
        #: Messages of each run.
        self._messages: dict[str, list[tuple[str, bytes]]] = {}

    def check(self, run_id: str, folder: Path, alerts: list[dict[str, Any]]) -> None:
        """Check one run whose job has ended."""
        keys = RunKeys(run_id)
        self._check_frames(run_id, keys)
        self._check_points(run_id, folder)
        self._check_incidents(run_id, keys)
        self._check_commands(run_id, keys, folder)
        self._check_alerts(run_id, keys, alerts)
        self._check_tokens(run_id, keys)

    def _check_tokens(self, run_id: str, keys: RunKeys) -> None:
        """Accepted writes of one takeover are never interleaved with those of another."""
        found: Any = self._redis.lrange(keys.owner + ACCEPTED, 0, -1)
        turns = [token for token, _ in groupby(found)]
        self.seen["accepted writes"] += len(found)
        self.seen["takeovers"] += len(turns)
        for token, times in Counter(turns).items():
            if times > 1:
                self.wrong.append(f"{run_id}: writes of token {token!r} were accepted again after another one's")

    def _parts(self, keys: RunKeys) -> list[Part]:
        listed: Any = self._redis.hvals(keys.parts)
        return sorted((Part.from_json(data) for data in listed), key=lambda part: stream_order(part.to_id))

    def _check_frames(self, run_id: str, keys: RunKeys) -> None:
        """Each frame is in the stream or in one part, and no file lies there that nobody knows."""
        messages: list[tuple[str, bytes]] = []
        parts = self._parts(keys)
        for part in parts:
            messages += PartReader(self._archive, run_id, part, ByteCache(0)).frames()
        stream: Any = self._redis.xrange(keys.frames)
        messages += [(entry.decode(), fields[b"b"]) for entry, fields in stream]
        self._messages[run_id] = messages
        self.seen["parts"] += len(parts)
        self.seen["messages"] += len(messages)
        order = [stream_order(entry) for entry, _ in messages]
        if order != sorted(set(order)):
            self.wrong.append(f"{run_id}: frames are out of order or there twice")
        expected = dict[str, int]()
        for frame in self._frames(run_id):
            source, first = frame.source.source, expected.get(frame.source.source, 0) + 1
            if frame.first_seq != first:
                self.wrong.append(f"{run_id}: {source} goes on with {frame.first_seq}, expected {first}")
            expected[source] = frame.last_seq
        stored: Any = self._redis.hgetall(keys.last_seq)
        if {source.decode(): int(last) for source, last in stored.items()} != expected:
            self.wrong.append(f"{run_id}: numbers {stored} are not those of the frames {expected}")
        if unknown := self.unknown_files(run_id):
            self.wrong.append(f"{run_id}: files of {unknown} are known to nobody")

    def unknown_files(self, run_id: str) -> list[str]:
        """Return the stems of files that are in no list; those of a power cut go once they have been seen for a while.

        The lists are read after the folder: whoever writes a file has noted it before.
        """
        keys = RunKeys(run_id)
        lying = {name.rpartition("/")[2].split(".")[0] for name in self._archive.names(run_id)}
        noted: Any = self._redis.sunion([keys.garbage, keys.sweeping])
        return sorted(lying - {part.stem for part in self._parts(keys)} - {stem.decode() for stem in noted})

    def _frames(self, run_id: str) -> Iterator[Frame]:
        for _, data in self._messages[run_id]:
            yield from frames_in(data)

    def _check_points(self, run_id: str, folder: Path) -> None:
        """Every row that the job was about to log is there once, bit for bit."""
        logged = Counter[tuple[int, bytes]]()
        for line in (folder / "truth").read_text().splitlines():
            if not line.startswith("back"):
                attempt, step = map(int, line.split())
                logged[step, struct.pack("<d", self._value_of(run_id, attempt, step))] += 1
        found = Counter[tuple[int, bytes]]()
        for frame in self._frames(run_id):
            for block in frame.blocks:
                if isinstance(block, PointsBlock) and "loss" in block.names:
                    steps = struct.unpack(f"<{len(block.steps) // 8}q", block.steps)
                    at = block.names.index("loss") * len(block.steps)
                    for n, step in enumerate(steps):
                        found[step, block.values[at + 8 * n : at + 8 * n + 8]] += 1
        self.seen["rows"] += sum(logged.values())
        for what, rows in (("lost", logged - found), ("there twice or made up", found - logged)):
            if rows:
                self.wrong.append(f"{run_id}: {sum(rows.values())} rows are {what}, first {min(rows)[0]}")

    def _check_incidents(self, run_id: str, keys: RunKeys) -> None:
        """The incidents are those that one undisturbed process finds in the same frames."""
        stored: Any = self._redis.hvals(keys.incidents)
        incidents = [json.loads(data) for data in stored]
        found = Counter(
            (one["kind"], one["onset_step"], one["segment"]) for one in incidents if one["kind"] not in _BESIDE
        )
        expected = Counter(
            (one.kind, one.onset_step, one.segment) for one in backtest(self._frames(run_id), run_id=run_id).incidents
        )
        for of_time in [kind for kind in found if kind[0] in OF_TIME]:
            self.wrong.append(f"{run_id}: an incident {of_time}, and its agent was never silent")
            del found[of_time]
        self.seen["incidents"] += sum(found.values())
        if found != expected:
            more, less = found - expected, expected - found
            self.wrong.append(f"{run_id}: incidents {dict(more)} too many, {dict(less)} missing")

    def _check_commands(self, run_id: str, keys: RunKeys, folder: Path) -> None:
        """Each order is in one end state, and the job did what was done and nothing else."""
        stored: Any = self._redis.hvals(keys.commands)
        commands = {one["command_id"]: one for one in map(json.loads, stored)}
        truth = (folder / "truth").read_text().splitlines()
        acted = [line.split()[1] for line in truth if line.startswith("back")]
        for name, times in Counter(acted).items():
            if times > 1:
                self.wrong.append(f"{run_id}: {name} was carried out {times} times")
        self.seen["orders"] += len(commands)
        self.seen["orders done"] += len(acted)
        # Such a loss may take the order itself, which its job has carried out.
        for name in acted:
            if name not in commands and not self._newest_may_be_lost:
                self.wrong.append(f"{run_id}: {name} was carried out, and nobody ordered it")
        for name, command in commands.items():
            if command["kind"] == "rollback" and command["state"] not in ENDS:
                self.wrong.append(f"{run_id}: {name} is {command['state']} at the end")
            if command["kind"] == "rollback" and (command["state"] == "done") != (name in acted):
                self.wrong.append(f"{run_id}: {name} is {command['state']}, the job went back: {name in acted}")

    def _check_alerts(self, run_id: str, keys: RunKeys, alerts: list[dict[str, Any]]) -> None:
        """No incident is reported as opened more often than it was; a message whose fate a kill left open keeps its id.

        One that went on after it had recovered was opened again. Of many runs that break at once the first are
        reported, the others in a summary.
        """
        stored: Any = self._redis.hkeys(keys.incidents)
        openings = self._openings(keys)
        for incident_id in (name.decode() for name in stored):
            opened = {
                one["id"]
                for one in alerts
                if one["type"] == "incident.opened" and one["incident"]["incident_id"] == incident_id
            }
            often = max(1, openings[incident_id])
            self.seen["alerts twice after a loss"] += len(opened) > often and self._newest_may_be_lost
            if len(opened) > often and not self._newest_may_be_lost:
                self.wrong.append(
                    f"{run_id}: {incident_id} was opened {often} times, and reported {len(opened)} times, as "
                    f"{sorted(opened)}"
                )

    def _openings(self, keys: RunKeys) -> Counter[str]:
        """Return how often each incident was opened, by its events; an event that is told again opens nothing."""
        found, newest = Counter[str](), dict[str, tuple[int, str]]()
        events: Any = self._redis.xrange(keys.incident_events)
        for _, fields in events:
            one = json.loads(fields[b"i"])
            version, state = newest.get(one["incident_id"], (0, ""))
            if one["version"] > version:
                found[one["incident_id"]] += one["state"] == "open" != state
                newest[one["incident_id"]] = one["version"], one["state"]
        return found
