"""``integrations.sources``: the server has the loss and the share of each source, of all ranks. A real job."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

from stack.fitted_runs import Fitted
from support.installed import needs
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

pytestmark = [pytest.mark.soak, needs("torch", "the job of this test needs torch")]

NAMES = ("web", "code", "books")
WIDTH = 2 * 2 * 3  # samples of a step: ranks, micro-batches, batch


def test_each_source_has_its_loss_and_share_of_all_ranks_and_micro_batches_also_after_a_rollback(
    tmp_path: Path,
) -> None:
    with Server(tmp_path / "data", free_port()) as server:
        folder = tmp_path / "job"
        folder.mkdir()
        with Fitted(folder, server, 2, "1000000", script="frameworks/mixed_job.py", launcher="torchrun") as job:
            job.wait_for_run()
            job.wait_for_checkpoint(40, 0)
            wait_until(lambda: job.truth()[-1].number > 100, 60, "the first branch is long")
            assert job.order(to_step=40, lr_scale=0.5, skip_batches=3)["state"] == "done"
            wait_until(lambda: job.truth()[-1].number > 400, 60, "the second branch is long")
            last = job.stop(100) - 1
            job.wait()
        server.wait_for(f"/runs/{job.run_id}", lambda run: run["status"] == "finished", "it is finished")

        truth: dict[tuple[int, int], list[float]] = defaultdict(list)
        for rank in (0, 1):
            rows = job.truth(rank)
            # Of each step the newest micro-batches: those of the branch that counts.
            newest = {row.number: [*range(at - 5, at + 1)] for at, row in enumerate(rows)}
            for step, places in newest.items():
                for place in places:
                    truth[step, rows[place].sample].append(rows[place].loss)

        for rank in (0, 1):
            for number, name in enumerate(NAMES):
                told = {
                    metric: {
                        step: value
                        for entry in job.get("/series", metric=f"{metric}/{name}", rank=rank)["series"]
                        for step, value in zip(entry["steps"], entry["values"], strict=True)
                    }
                    for metric in ("loss", "ratio")
                }
                seen = {step: losses for (step, kind), losses in truth.items() if kind == number}
                assert told["loss"] == pytest.approx({step: sum(each) / len(each) for step, each in seen.items()})
                assert told["ratio"] == pytest.approx(
                    {step: len(seen.get(step, [])) / WIDTH for step in range(1, last + 1)}
                )
        sets = {one["metric"]: one["dataset"] for one in job.get("/watched")["watched"] if one["dataset"]}
        assert sets == {f"{metric}/{name}": name for metric in ("loss", "ratio") for name in NAMES}
        (mixture,) = job.get("/mixture")["mixtures"]
        shares = {share["dataset"]: (share["metric"], share["realised"]) for share in mixture["sets"]}
        assert {name: metric for name, (metric, _) in shares.items()} == {name: f"ratio/{name}" for name in NAMES}
        assert shares["web"][1] == pytest.approx(0.7, abs=0.05)
