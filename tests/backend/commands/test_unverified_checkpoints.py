"""A checkpoint that no rank of the run is known to have written: who loads one runs code of its author."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.base.errors import BadRequest, Conflict
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest
from stabilityclient.wire import SourceInfo
from support.job_frames import Job

NOW = 5_000.0


class Trained:
    """A run at step 300 of which an own checkpoint of step 100 is known."""

    def __init__(self) -> None:
        self.rank = Job()
        self.state = RunState("run", lambda: NOW)
        self.feed(self.rank.rows(range(1, 301)), self.rank.event("checkpoint", 100, path="/out/a/step-100/model.pt"))

    def feed(self, *frames: Any) -> None:
        for frame in frames:
            self.state.apply(frame, replayed=False)

    def intrude(self, step: int = 200, path: str = "s3://other/evil") -> None:
        """Somebody with a key sends a checkpoint from a process of its own."""
        stranger = Job()
        stranger.info = SourceInfo("r0-7-7", rank=0, node="elsewhere")
        self.feed(stranger.event("checkpoint", step, path=path))

    def looked(self, step: int, path: str, node: str | None = None) -> None:
        agent = Job()
        agent.info = SourceInfo("a9-9", node=node or self.rank.info.node)
        self.feed(agent.event("checkpoint_seen", step, path=path, kind="dcp", complete=True))

    def order(self, kind: str, **request: Any) -> Any:
        job = replace(self.state.job.view(), agents=1)
        return CommandBook("run").issue(CommandRequest(kind, **request), job, command_id="c", issuer="ada", now=NOW)

    @property
    def offered(self) -> list[int]:
        return [one.step for one in self.state.job.offer().checkpoints]

    @property
    def unverified(self) -> list[int]:
        return [one.step for one in self.state.job.offer().withheld if one.unverified]


def test_a_strangers_checkpoint_is_neither_offered_nor_suggested_nor_planned() -> None:
    run = Trained()
    run.intrude()

    offer = run.state.job.offer()

    assert (run.offered, run.unverified, offer.to_step) == ([100], [200], 100)
    planned = run.state.job.plan(NOW, CommandRequest("restart")).checkpoint
    assert planned is not None
    assert planned.step == 100
    with pytest.raises(Conflict, match="not verified"):
        run.state.job.plan(NOW, CommandRequest("restart", to_step=200))


def test_an_order_that_names_it_is_refused_until_it_is_accepted() -> None:
    run = Trained()
    run.intrude()

    with pytest.raises(Conflict, match="s3://other/evil is not verified") as refused:
        run.order("rollback", to_step=200)
    command = run.order("rollback", to_step=200, accept_unverified=True)

    assert refused.value.code == "unverified_checkpoint"
    assert "--accept-unverified" in refused.value.hint
    assert command.checkpoint == "s3://other/evil"


def test_a_word_for_unverified_accepts_no_torn_one() -> None:
    run = Trained()
    run.intrude()
    run.feed(_torn(run))

    with pytest.raises(BadRequest, match="it is incomplete"):
        run.order("rollback", to_step=200, accept_unverified=True)


def _torn(run: Trained) -> Any:
    agent = Job()
    agent.info = SourceInfo("a8-8", node=run.rank.info.node)
    return agent.event(
        "checkpoint_seen", 200, path="s3://other/evil", kind="dcp", complete=False, problem="a is missing"
    )


@pytest.mark.parametrize("path", ["/out/a/step-200/model.pt", "/out/a/step-200/sub/model.pt"])
def test_the_next_one_of_the_job_beside_the_last_one_is_its_own(path: str) -> None:
    run = Trained()
    run.feed(run.rank.event("checkpoint", 200, path=path))
    assert (run.offered, run.unverified) == ([200, 100], [])


@pytest.mark.parametrize("path", ["/out/b/step-100/x", "/out/a/step-1/../../evil", "/out/a", "s3://out/a/step-100/x"])
def test_one_beside_the_jobs_folders_is_not_its_own(path: str) -> None:
    run = Trained()
    run.feed(run.rank.event("checkpoint", 200, path=path))
    assert (run.offered, run.unverified) == ([100], [200])


def test_a_bucket_with_another_number_is_another_place() -> None:
    run = Trained()
    run.feed(run.rank.event("checkpoint", 150, path="s3://team1/150"))
    run.looked(150, "s3://team1/150")
    run.feed(run.rank.event("checkpoint", 200, path="s3://team2/200"))
    assert (run.offered, run.unverified) == ([150, 100], [200])


def test_one_elsewhere_counts_once_the_agent_of_the_job_has_seen_it() -> None:
    run = Trained()
    run.feed(run.rank.event("checkpoint", 200, path="/new/place/200"))
    assert run.unverified == [200]
    run.looked(200, "/new/place/200")
    run.feed(run.rank.event("checkpoint", 250, path="/new/place/250"))
    assert (run.offered, run.unverified) == ([250, 200, 100], [])


def test_the_look_of_an_agent_on_a_node_without_a_rank_says_nothing() -> None:
    run = Trained()
    run.intrude()
    run.looked(200, "s3://other/evil", "elsewhere")
    assert run.unverified == [200]


def test_what_is_verified_survives_a_snapshot() -> None:
    run = Trained()
    run.intrude()
    later = RunState("run", lambda: NOW)
    later.restore({part.name: part for part in run.state.saved()})
    assert later.job.checkpoints() == run.state.job.checkpoints()
    run.state = later
    run.feed(run.rank.event("checkpoint", 250, path="/out/a/step-250/model.pt"))
    assert (run.offered, run.unverified) == ([250, 100], [200])
