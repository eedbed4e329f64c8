"""``seed`` of a rollback in ``torch.Training``: other random numbers from there on, and the same over deaths."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stabilityclient
from support.agent.ordered import answers, deliver, rollback_order
from support.installed import needs

pytestmark = needs("torch", "the jobs of this test are torch's")

#: Batches of an epoch, of three samples each; checkpoints are saved every ten steps.
EPOCH = 15
Row = tuple[int, list[int], float]
Train = Callable[..., list[Row]]
KINDS = pytest.mark.parametrize(
    "kind", ["DistributedSampler", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("drawn", "RandomSampler"))]
)


def loader(kind: str) -> Any:
    import torch

    if kind == "drawn":
        return lambda: torch.randint(1_000_000, (3,))
    data: Any = [torch.tensor(number) for number in range(3 * EPOCH)]
    sampler: Any = torch.utils.data.DistributedSampler(data, 1, 0, seed=5) if kind == "DistributedSampler" else None
    return torch.utils.data.DataLoader(data, batch_size=3, shuffle=sampler is None, sampler=sampler)


@pytest.fixture
def train(start: Callable[..., stabilityclient.Run], tmp_path: Path) -> Train:
    """Run a process of a job up to a step; with a seed it goes back to step 10 before step 26, with that seed."""

    def trained(job: str, kind: str, until: int, *, seed: int | None = None, process: int = 1) -> list[Row]:
        import torch

        from stabilityclient.integrations.torch import Training

        torch.manual_seed(1)
        run = start(run_id=f"{job}-{process}")
        folder, rows = tmp_path / job, []
        training = Training(run, folder, loader=loader(kind), save_every=10, model=torch.nn.Linear(1, 1))
        for step in training.steps():
            if step == 25 and seed is not None:
                deliver(run, rollback_order(10, 26, seed=seed, checkpoint=str(folder / "step-10")))
            rows.append((step, training.batch().tolist(), float(torch.rand(()))))
            if step == until and (seed is None or len(rows) > until):
                break
        told = [applied for state, applied in answers(run) if state == "acted"]
        assert told == ([] if seed is None else [{"seed": seed}])
        return rows

    return trained


def batches(rows: list[Row]) -> list[list[int]]:
    return [batch for _, batch, _ in rows]


@KINDS
def test_a_seed_gives_other_numbers_which_are_its_own(kind: str, train: Train) -> None:
    plain = train("plain", kind, 50)
    seeded, again, other = (train(name, kind, 50, seed=seed)[25:] for name, seed in (("a", 7), ("b", 7), ("c", 8)))

    assert seeded == again
    assert [step for step, _, _ in seeded] == [*range(11, 51)]
    for one, two in ((plain[10:], seeded), (plain[10:], other), (seeded, other)):
        assert not {number for _, _, number in one} & {number for _, _, number in two}
        # The epoch that had begun keeps its order; a function has no epochs.
        assert (batches(one)[:5] == batches(two)[:5]) == (kind != "drawn")
        assert not [batch for batch in batches(one)[5:] if batch in batches(two)[5:]]


@KINDS
def test_a_job_that_dies_before_and_after_its_next_save_goes_on_with_the_same_numbers(kind: str, train: Train) -> None:
    whole = train("whole", kind, 50, seed=7)[25:]
    train("killed", kind, 13, seed=7)
    assert train("killed", kind, 27, process=2) == whole[:17]
    assert train("killed", kind, 50, process=3) == whole[10:]


def test_a_loader_with_an_order_of_its_own_is_offered_no_seed(start: Any, tmp_path: Path) -> None:
    import torch

    from stabilityclient.integrations.torch import Training

    ordered: Any = [torch.ones(1)]
    loaders: list[Any] = [ordered, torch.utils.data.DataLoader(ordered)]
    for number, given in enumerate(loaders):
        run = start(run_id=f"r{number}")
        training = Training(run, tmp_path / str(number), loader=given, save_every=2, model=torch.nn.Linear(1, 1))
        for step in training.steps(6):
            if step == 4:
                deliver(run, rollback_order(2, 5, seed=7, checkpoint=str(tmp_path / str(number) / "step-2")))
        assert [state for state, _ in answers(run)] == ["ready", "failed"]
