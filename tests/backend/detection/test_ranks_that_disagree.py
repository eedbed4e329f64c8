"""A job whose ranks log the same metrics: the suspect's place is known, and what to do names the state from before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from stabilitybackend.runs.archiving import snapshot
from stabilitybackend.runs.state import RunState
from stabilitybackend.schema.incidents import Incident
from stabilityclient.node_frames import together
from stabilityclient.wire import Frame, Health
from support.job_frames import Job

RANKS, ONSET = 4, 60


def _checksum(step: int, rank: int) -> float:
    return float(random.Random(step).getrandbits(32) ^ (rank == 2 and step >= ONSET))


def _rows(job: Job, step: int, value: Callable[[int, int], float]) -> dict[str, list[float]]:
    rank = job.info.rank or 0
    noise = random.Random(f"{step} {rank}").gauss(0, 0.02)
    return {"loss": [2.5 + noise], "checksum/weights": [value(step, rank)]}


class _Run:
    """A run of four ranks with checkpoints at each tenth step; ``node``: their rows come in one message."""

    def __init__(self, *, node: bool = False, value: Callable[[int, int], float] = _checksum) -> None:
        self.state, self.node, self.value = RunState("run", lambda: 9_000.0), node, value
        self.jobs = [Job(rank, world_size=RANKS) for rank in range(RANKS)]

    def train(self, first: int, last: int) -> None:
        for step in range(first, last):
            frames = [job.rows([step], _rows(job, step, self.value)) for job in self.jobs]
            if self.node:
                self.state.apply(together(frames))
            else:
                for frame in frames:
                    self._fold(frame)
            if step % 10 == 0:
                self.state.apply(self.jobs[0].event("checkpoint", step, path=f"/c/{step}"), replayed=False)

    def _fold(self, frame: Frame) -> None:
        self.state.apply(frame, replayed=False)

    def seen_by_agents(self) -> None:
        ranks = [
            {
                "rank": rank,
                "source": f"r{rank}-1",
                "world_size": RANKS,
                "state": "running",
                "gpu": {"index": rank, "uuid": f"GPU-{rank}"},
            }
            for rank in range(RANKS)
        ]
        self.state.agents.health(Health("a1", "n0", 1_000.0, ranks))

    @property
    def suspect(self) -> Incident:
        (found,) = self.state.incidents.of({"sdc_suspect"})
        return found


@pytest.mark.parametrize("node", [False, True])
def test_a_rank_with_other_weights_is_named_with_node_and_gpu_and_the_checkpoint_from_before(node: bool) -> None:
    run = _Run(node=node)
    run.train(1, 30)
    run.seen_by_agents()
    run.train(30, ONSET + 15)
    found = run.suspect
    assert (found.rank, found.node, found.severity, found.onset_step) == (2, "n0", "critical", ONSET)
    assert found.evidence["gpus"] == [{"rank": 2, "node": "n0", "index": 2, "uuid": "GPU-2"}]
    assert found.suggestion is not None
    assert found.suggestion.action == "restart"
    assert "without the device of rank 2 on n0, GPU 2 (GPU-2), from the checkpoint of step 50" in found.suggestion.text


def test_ranks_that_are_equal_have_no_suspect_and_their_losses_are_their_own() -> None:
    run = _Run(value=lambda step, rank: _checksum(step, 0))
    run.train(1, 150)
    assert run.state.incidents.of({"sdc_suspect"}) == []


def test_after_a_restart_of_the_server_the_same_is_found_and_the_place_is_still_known() -> None:
    whole, first = _Run(), _Run()
    for run in (whole, first):
        run.train(1, 30)
        run.seen_by_agents()
        run.train(30, ONSET + 1)
    first.state = snapshot.load(snapshot.seal(snapshot.freeze(first.state)), "run", lambda: 9_000.0)
    for run in (whole, first):
        run.train(ONSET + 1, ONSET + 15)
    assert first.suspect.evidence == whole.suspect.evidence
    assert (first.suspect.incident_id, first.suspect.node) == (whole.suspect.incident_id, "n0")
