"""A job that dies and goes on from a checkpoint with a loader that starts over, from its process to the incident."""

from __future__ import annotations

from pathlib import Path

import pytest

from stabilitybackend.runs.state import RunState
from support.agent.spooled import child, frames

JOB = """
import os, random
import stabilityclient

first, last, begin, seed = map(int, os.environ["JOB"].split())
order = list(range(20_000))
random.Random(seed).shuffle(order)
run = stabilityclient.init(project="p", name="n", dir=os.environ["FOLDER"])
for step in range(first, last):
    at = begin + (step - first) * 50
    run.data(step, ids=order[at : at + 50])
    run.log(step, {"loss": 1.0})
run._drain()
if last == 220:
    os._exit(9)
run.finish()
"""


def state_of(folder: Path, *jobs: tuple[int, int, int, int]) -> RunState:
    """Run the job's processes one after the other, and fold what they left."""
    for job in jobs:
        process = child(JOB, JOB=" ".join(map(str, job)), FOLDER=str(folder), STABILITY_RUN_ID="r1",
                        STABILITY_MODE="offline")  # fmt: skip
        assert process.communicate()[1] == ""
    state = RunState("r1", lambda: 1e9)
    for frame in frames(next(path.parent for path in folder.rglob("sources"))):
        state.apply(frame, replayed=False)
    return state


@pytest.mark.parametrize(
    ("begin", "seed", "title"),
    [
        (200 * 50, 1, None),
        (0, 1, "Known batches are fed again since step 200"),
        (0, 2, "Known samples in a new order since step 200"),
    ],
    ids=["right", "started over", "another order"],
)
def test_what_the_resumed_loader_feeds_is_judged_within_three_steps(
    tmp_path: Path, begin: int, seed: int, title: str | None
) -> None:
    state = state_of(tmp_path, (0, 220, 0, 1), (200, 260, begin, seed))

    found = [one for one in state.incidents.all() if one.kind == "repeat_data"]
    assert [(one.title, one.severity) for one in found] == ([] if title is None else [(title, "warning")])
    assert all(one.step <= 203 and one.evidence["since"] == "the restart from step 199" for one in found)
