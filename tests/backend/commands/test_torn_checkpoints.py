"""A checkpoint of which a part is missing is never offered, advised or taken, and everybody is told why."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stabilitybackend.acting.commands.commands import CommandBook
from stabilitybackend.base.errors import BadRequest
from stabilitybackend.lineage.checkpoints import IN_PARTS
from stabilitybackend.runs.consumers.incidents import Incidents
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.commands import CommandRequest
from stabilityclient.agent.upload.records import SpooledEvent
from stabilityclient.agent.watch.checkpoint_survey import survey
from stabilityclient.agent.watch.checkpoints import CheckpointWatch
from stabilityclient.wire import SourceInfo
from support.agent.written_checkpoints import WRITERS
from support.job_frames import Job

NOW = 5_000.0


class Trained:
    """A run at step 300 whose checkpoint of step 100 nobody looked at; agents tell of others."""

    def __init__(self, path: str = "c/100", world_size: int = 2) -> None:
        self.rank = Job(world_size=world_size)
        self.agents: dict[str, Job] = {}
        self.state = RunState("run", lambda: NOW)
        self.feed(self.rank.rows(range(1, 301)), self.rank.event("checkpoint", 100, path=path))

    def feed(self, *frames: Any) -> None:
        for frame in frames:
            self.state.apply(frame, replayed=False)

    def announce(self, step: int, path: str) -> None:
        self.feed(self.rank.event("checkpoint", step, path=path))

    def tell(self, event: str, step: int, node: str, /, **data: Any) -> None:
        """The agent of a node says something."""
        agent = self.agents.setdefault(node, Job())
        agent.info = SourceInfo(source=f"a-{node}", node=node)
        self.feed(agent.event(event, step, **data))

    def seen(self, step: int, path: str, node: str = "n0", **found: Any) -> None:
        self.tell("checkpoint_seen", step, node, path=path, **{"kind": "dcp", **found})

    @property
    def steps(self) -> list[int]:
        """What is offered."""
        return [one.step for one in self.state.job.offer().checkpoints]

    @property
    def why(self) -> dict[int, str]:
        """What is not offered, and why."""
        return {one.step: one.unfit for one in self.state.job.offer().withheld}

    def order(self, step: int) -> None:
        job = replace(self.state.job.view(), agents=1)
        CommandBook("run").issue(CommandRequest("rollback", step), job, command_id="c", issuer="ada", now=NOW)


def _missing(path: Path) -> None:
    path.unlink()


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize(
    ("kind", "file", "tear"),
    [
        ("torch", "", _truncated),
        pytest.param("safetensors", "", _truncated, marks=pytest.mark.soak),
        pytest.param("dcp", ".metadata", _missing, marks=pytest.mark.soak),
        pytest.param("dcp", "__1_0.distcp", _missing, marks=pytest.mark.soak),
        ("dcp", "__1_0.distcp", _truncated),
        ("zero", "zero_pp_rank_1_mp_rank_00_optim_states.pt", _missing),
        pytest.param("zero", "mp_rank_00_model_states.pt", _truncated, marks=pytest.mark.soak),
        pytest.param("hugging_face", "optimizer.pt", _missing, marks=pytest.mark.soak),
        ("hugging_face_shards", "model-00002-of-00002.safetensors", _missing),
        pytest.param("hugging_face", "rng_state_1.pth", _truncated, marks=pytest.mark.soak),
        ("lightning", "", _truncated),
        pytest.param("lightning_shards", "meta.pt", _missing, marks=pytest.mark.soak),
    ],
)
def test_a_torn_one_is_not_offered_from_the_moment_on_at_which_the_agent_sees_it(
    tmp_path: Path, kind: str, file: str, tear: Callable[[Path], None]
) -> None:
    run, watch, path = Trained(), CheckpointWatch(None), WRITERS[kind](tmp_path)
    run.announce(200, str(path))
    watch.take(SpooledEvent(1, "checkpoint", 0.0, 200, {"path": str(path)}), 2)

    def look() -> None:
        for told in watch.settle(survey(watch.due()), over=True):
            run.tell(told.type, told.step, "n0", **told.data)

    look()
    assert (run.steps, run.why) == ([200, 100], {})
    tear(path / file if file else path)
    look()
    assert run.steps == [100]
    assert run.why[200].startswith(f"it is incomplete: {file or path.name} is {tear.__name__[1:]}")
    with pytest.raises(BadRequest, match="the checkpoint of step 200 can't be used: it is incomplete: ") as refused:
        run.order(200)
    assert refused.value.hint == "usable checkpoints: 100"
    plan = run.state.job.plan(NOW, CommandRequest("restart", reason="for the test"))
    assert plan.checkpoint is not None
    assert plan.checkpoint.step == 100
    assert f"That of step 200 is not used: {run.why[200]}." in plan.text


def test_one_that_is_still_written_is_offered_when_it_is_whole() -> None:
    run = Trained()
    run.announce(200, "c/200")
    run.seen(200, "c/200", complete=False, writing=True, problem=".metadata is missing", bad=[".metadata"])
    assert (run.steps, run.why) == ([100], {200: "it is still being written: .metadata is missing"})
    run.seen(200, "c/200", complete=True)
    assert (run.steps, run.why) == ([200, 100], {})


def test_what_loads_with_the_ranks_that_wrote_it_only_is_offered_to_no_other_job() -> None:
    for size, offered in ((4, [200, 100]), (2, [100])):
        run = Trained(world_size=size)
        run.announce(200, "c/200")
        run.seen(200, "c/200", kind="deepspeed", complete=True, world_size=4, loads_with="same")
        assert run.steps == offered
        assert run.state[Incidents].usable().newest() == offered[0]
    assert run.why == {200: "4 ranks wrote it and as many can load it; the job has 2"}


def test_a_look_that_is_heard_of_before_its_checkpoint_counts() -> None:
    run = Trained()
    run.seen(200, "c/200", complete=False, problem="__1_0.distcp is missing", bad=["__1_0.distcp"])
    run.announce(200, "c/200")
    assert run.steps == [100]


def test_an_earlier_look_is_none_of_the_checkpoint_that_is_written_over_it() -> None:
    run = Trained()
    run.announce(200, "last")
    run.seen(200, "last", complete=False, problem="it", bad=["it"])
    run.announce(250, "last")
    assert run.steps == [250, 100]


def test_nodes_that_miss_the_same_file_agree_and_one_that_sees_all_of_it_later_is_right() -> None:
    run, bad = Trained(), {"complete": False, "problem": "b is missing"}
    run.announce(200, "c/200")
    run.seen(200, "c/200", "n0", bad=["a", "b"], **bad)
    run.seen(200, "c/200", "n1", bad=["b"], **bad)
    assert run.steps == [100]
    run.seen(200, "c/200", "n0", complete=True)
    assert run.steps == [200, 100]
    run.seen(200, "c/200", "n1", bad=["b"], **bad)
    assert run.steps == [100]


def test_a_node_that_can_not_look_says_so_and_takes_back_nothing_that_another_one_found() -> None:
    run, why = Trained("s3://b/100"), "not checked: the node's agent has no credentials for s3://"
    run.announce(200, "s3://b/200")
    run.seen(200, "s3://b/200", "n0", kind="unknown", complete=None, problem=why)
    assert [(one.step, one.unchecked) for one in run.state.job.offer().checkpoints] == [(200, why), (100, "")]
    run.seen(200, "s3://b/200", "n1", complete=False, problem="a is missing", bad=["a"])
    run.seen(200, "s3://b/200", "n0", kind="unknown", complete=None, problem=why)
    assert run.steps == [100]


def test_nodes_that_each_hold_a_part_on_a_disk_of_their_own_are_no_proof_of_anything() -> None:
    run = Trained()
    run.announce(200, "c/200")
    run.seen(200, "c/200", "n0", complete=False, problem="__1_0.distcp is missing", bad=["__1_0.distcp"])
    run.seen(200, "c/200", "n1", complete=False, problem=".metadata is missing", bad=[".metadata"])
    assert (run.steps, run.why) == ([200, 100], {})
    (look,) = [one.look for one in run.state.fold.checkpoints if one.step == 200]
    assert look is not None
    assert (look.complete, look.problem) == (None, IN_PARTS)


def test_what_the_agents_saw_survives_a_snapshot() -> None:
    run = Trained()
    run.announce(200, "c/200")
    run.seen(200, "c/200", complete=False, problem="it", bad=["it"], size_bytes=7, files=1)
    run.seen(250, "c/250", complete=False, problem="it", bad=["it"])
    later = RunState("run", lambda: NOW)
    later.restore({part.name: part for part in run.state.saved()})
    assert later.job.checkpoints() == run.state.job.checkpoints()
    run.state = later
    run.announce(250, "c/250")
    assert run.steps == [100]


def test_the_slowest_rank_tells_how_long_the_save_took() -> None:
    run = Trained()
    for took in (3.0, 12.5, None, 4.0):
        run.feed(run.rank.event("checkpoint", 200, path="c/200", **({} if took is None else {"took_s": took})))
    assert {one.step: one.took_s for one in run.state.job.checkpoints()} == {200: 12.5, 100: None}


def test_the_advice_says_why_the_checkpoint_from_before_a_spike_is_no_way_back() -> None:
    run = Trained()
    run.announce(300, "c/300")
    run.tell("checkpoint_gone", 100, "n0", path="c/100")
    run.seen(300, "c/300", complete=False, problem="it is missing", bad=["it"])
    steps = range(301, 380)
    spoilt = [1000.0 + 4_000.0 * (step > 330) + 0.01 * (step % 7) for step in steps]
    run.feed(run.rank.rows(steps, {"loss": spoilt}))
    advice = [one.suggestion.text for one in run.state.incidents.all() if one.suggestion and one.state == "open"]
    assert any("that of step 300 can't be used, it is incomplete: it is missing." in text for text in advice), advice
