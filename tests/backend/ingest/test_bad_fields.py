"""Whatever stands in a field of what an agent sends: it is refused or stored, and nothing behind the door fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import msgspec
import pytest

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.base.slices import at_once
from stabilitybackend.ingest.connection import check_frame
from stabilitybackend.judging.gpus.readings import GpuReadings
from stabilitybackend.judging.gpus.view import gpus_view
from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.derived.rollback_cost import rollback_costs_of
from stabilitybackend.runs.feed.health import HealthFeed
from stabilitybackend.runs.feed.pubsub import Channel, Subscriber
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest, read_command
from stabilitybackend.schema.incidents import as_json, decoded, encoded
from stabilityclient.wire import (
    BadMessage,
    EventBlock,
    Frame,
    Health,
    Message,
    SourceInfo,
    decode_message,
    encode_message,
)
from support import bad_events
from support.job_frames import Job
from support.stops import NO_STOPS

T = TypeVar("T")
AGENT = SourceInfo("a1-1", node="n0", pid=9, started=990.0)


class _Run:
    """A job of two ranks that trained twelve steps and was ordered to go back, as a server follows it."""

    def __init__(self) -> None:
        self.now = 1_012.0
        self.state = RunState("run", lambda: self.now)
        self.channel = Channel()
        self.channel.join(Subscriber())
        self.feed = HealthFeed(self.channel)
        self.jobs = [Job(rank, 1, 2) for rank in (0, 1)]
        for job in self.jobs:
            rank = job.info.rank or 0
            job.info.source, job.info.pid = f"r{rank}-3b9aca00-10{rank}", 100 + rank
            for frame in (job.rows([10, 11, 12]), job.event("checkpoint", 10, path="c/10")):
                self.state.apply(frame, replayed=False)
        self.state.agents.health(bad_events.health(self.now))
        for command_id, request in (("c-1", CommandRequest("rollback", 10)), ("c-2", CommandRequest("dump_stacks"))):
            self.state.issue(request, command_id=command_id, issuer="ada")

    def take(self, message: Message) -> bool:
        """Let a message through the door and behind it, as a connection and a worker do; False: it was refused."""
        try:
            read = decode_message(encode_message(message))
            if isinstance(read, Frame):
                check_frame(read)
        except (BadMessage, BadRequest):
            return False
        if isinstance(read, Frame):
            self.state.apply(read, replayed=False)
        elif isinstance(read, Health):
            self.feed.put(self.state.agents.health(read))
        return True

    def send(self, event: EventBlock, source: SourceInfo) -> bool:
        return self.take(Frame(source, 14, 14, [event]))

    def goes_on(self) -> None:
        """Ask all that a server does next and that people can ask."""
        for _ in range(2):
            self.now += 20.0
            self.state.tick()
        self.take(bad_events.health(self.now))
        at_once(self.feed.flushing(self.state.statuses))
        self._shown(self.state)
        assert self.state.unreadable.defects == 0

    def starts_again(self) -> None:
        """Go on with another server, from what is stored."""
        again = snapshot.load(snapshot.seal(snapshot.freeze(self.state)), "run", lambda: self.now)
        incidents = [decoded(encoded(incident)) for incident in self.state.incidents.all()]
        again.incidents.load(incidents)
        again.liveness.load(incidents)
        again.gpus.load(incidents)
        again.commands.load(read_command(msgspec.to_builtins(one)) for one in self.state.commands.all())
        again.tick()
        self._shown(again)

    @staticmethod
    def _shown(state: RunState) -> None:
        msgspec.json.encode(
            [
                state.view(),
                [as_json(incident) for incident in state.incidents.all()],
                state.commands.all(),
                state.job.checkpoints(),
                state.fold.tree.view().segments,
                [state.agents.shown(agent) for agent in state.agents.all.values()],
                [dump.shown() for dump in state.liveness.dumps.held()],
                gpus_view(state.gpus, state.incidents.of({"gpu_fault"}), lambda uuid: [], state[GpuReadings].of),
                state.job.plan(2_000.0),
                rollback_costs_of(state, 2_000.0, NO_STOPS)(),
                state.stretches.all(),
            ]
        )


def _faults(events: list[EventBlock]) -> Iterator[tuple[str, EventBlock]]:
    """Yield the events as they are and with one fault each; a field that several have alike is wrong in one of them."""
    known: set[str] = set()
    for event in events:
        yield "as it is", event
        whole = {"time": event.time, "step": event.step, "data": event.data}
        for name, wrong in bad_events.faulty(whole, known):
            yield name, EventBlock(event.type, wrong.get("time", 1.0), wrong.get("step"), wrong.get("data", {}))


def _by_type(events: list[EventBlock]) -> list[Any]:
    types = dict.fromkeys(event.type for event in events)
    return [pytest.param([event for event in events if event.type == kind], id=kind) for kind in types]


#: `make test` takes one fault of so many, each time others; `make soak` takes all.
SHARES = pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.soak, id="all")])


def _some(sent: Iterable[T], share: int) -> Iterator[T]:
    return itertools.islice(sent, random.randrange(share), None, share)


def _check(sent: Iterator[tuple[str, EventBlock]], source: Callable[[_Run], SourceInfo], share: int) -> None:
    for name, event in _some(sent, share):
        run = _Run()
        try:
            taken = run.send(event, source(run))
            if not taken:  # it did not come behind the door
                continue
            run.goes_on()
            left_out = run.state.unreadable
            if not left_out.passed_over and not left_out.fields:  # else as if it had not been sent
                run.starts_again()
        except Exception as error:
            pytest.fail(f"{event.type}: {name}: {type(error).__name__}: {error}")


@SHARES
@pytest.mark.parametrize("events", _by_type(bad_events.rank_events()))
def test_no_value_of_any_field_of_a_ranks_event_fails_behind_the_door(events: list[EventBlock], share: int) -> None:
    _check(_faults(events), lambda run: run.jobs[0].info, share)


@SHARES
@pytest.mark.parametrize("events", _by_type(bad_events.agent_events()))
def test_no_value_of_any_field_of_an_agents_event_fails_behind_the_door(events: list[EventBlock], share: int) -> None:
    _check(_faults(events), lambda run: AGENT, share)


@SHARES
def test_no_value_of_any_field_of_a_health_message_fails_behind_the_door(share: int) -> None:
    good = bad_events.health()
    fields = ("agent", "node", "time", "ranks", "agent_state")
    known = {f"ranks.1.{name}={value!r}" for name, value in good.ranks[1].items()}
    faults = bad_events.faulty({field: getattr(good, field) for field in fields}, known)
    for name, wrong in _some(faults, share):
        run = _Run()
        try:
            run.take(Health(*(wrong.get(field) for field in fields)))
            run.goes_on()
        except Exception as error:
            pytest.fail(f"health: {name}: {type(error).__name__}: {error}")


def test_no_value_of_any_field_of_a_source_fails_behind_the_door() -> None:
    run = _Run()
    info = {name: getattr(run.jobs[0].info, name) for name in SourceInfo.__struct_fields__}
    for name, wrong in bad_events.faulty(info):
        run = _Run()
        try:
            run.send(bad_events.rank_events()[4], SourceInfo(**wrong) if "source" in wrong else AGENT)
            run.goes_on()
        except Exception as error:
            pytest.fail(f"source: {name}: {type(error).__name__}: {error}")
