"""Resumes with real packages, right and wrong: each case trains, is killed, and goes on from its checkpoint."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from .tiny_jobs import BATCH, Rows, TinyJob, samples_of

#: Steps up to the checkpoint, to the kill, and in all; steps of an epoch where there are several.
SAVED, KILLED, LAST = 500, 540, 900
EPOCH = 400

__all__ = ["CASES", "SAVED", "Case"]


@dataclass(frozen=True)
class Case:
    """One way to resume.

    Args:
        package: that is needed.
        name: what is done, in a few words.
        run: makes the log, ``run(right, seed)``.
        repeats: whether the wrong way feeds batches again in an order that was there before.
        since: the first step of the repetition.
        also: another package that is needed.
    """

    package: str
    name: str
    run: Callable[[bool, int], Rows]
    repeats: bool = True
    since: int = SAVED + 1
    also: str = "torch"

    def missing(self) -> str:
        """Return why the package can't be used here, empty where it can."""
        try:
            importlib.import_module(self.package)
            importlib.import_module(self.also)
        except Exception as error:  # an installed package may lack one of its own
            return f"{type(error).__name__}: {error}"
        return ""


class _Samples(Dataset[Any]):
    """Samples with their numbers."""

    def __init__(self, task: str, count: int, seed: int) -> None:
        self.rows = samples_of(task, count, seed)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        return index, self.rows[index]


def _samples(seed: int, steps: int = LAST + 100, task: str = "text") -> _Samples:
    return _Samples(task, steps * BATCH, seed)


def _plain(job: TinyJob, batches: Iterator[Any], until: int) -> None:
    while job.step < until:
        job.train(next(batches))


def _went_on(job: TinyJob, saved: dict[str, Any]) -> TinyJob:
    """Return a new job from a checkpoint, which logs on where the killed one ended."""
    again = TinyJob(job.task, job.model, job.seed + 1_000, job.lr, rows=job.rows)
    again.load(saved)
    return again


# --- Lightning ------------------------------------------------------------------------------------------------------


def _lightning(shuffled: str) -> Callable[[bool, int], Rows]:
    def run(right: bool, seed: int) -> Rows:
        import logging

        import lightning

        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

        class Module(lightning.LightningModule):
            def __init__(self, job: TinyJob) -> None:
                super().__init__()
                self.job, self.net = job, job.net

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                loss = self.job.loss(batch[1])
                self.job.log(batch[0], float(loss.detach()))
                return loss

            def configure_optimizers(self) -> Any:
                return self.job.optimizer

        class Save(lightning.Callback):
            def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
                if trainer.global_step == SAVED:
                    trainer.save_checkpoint(path)

        def fit(job: TinyJob, until: int, ckpt: str | None) -> None:
            seeded = torch.Generator().manual_seed(seed if shuffled == "seeded" else seed + job.step)
            options: dict[str, Any] = {"batch_size": BATCH, "shuffle": bool(shuffled)}
            if shuffled:
                options["generator"] = seeded
            make: Any = DataLoader
            if right:
                from torchdata.stateful_dataloader import StatefulDataLoader as make
            trainer = lightning.Trainer(
                max_steps=until, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, callbacks=[Save()],
            )  # fmt: skip
            trainer.fit(Module(job), make(data, **options), ckpt_path=ckpt, weights_only=False if ckpt else None)

        data = _samples(seed)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/job.ckpt"
            job = TinyJob(seed=seed)
            fit(job, KILLED, None)
            again = TinyJob(seed=seed + 1_000, rows=job.rows)
            again.step = SAVED
            fit(again, LAST, path)
        return job.rows

    return run


# --- torchdata, StreamingDataset ------------------------------------------------------------------------------------


def _stateful(shuffle: bool) -> Callable[[bool, int], Rows]:
    def run(right: bool, seed: int) -> Rows:
        from torchdata.stateful_dataloader import StatefulDataLoader

        def loader() -> Any:
            generator = torch.Generator().manual_seed(seed)
            return StatefulDataLoader(data, batch_size=BATCH, shuffle=shuffle, generator=generator if shuffle else None)

        data = _samples(seed)
        job, first = TinyJob(seed=seed), loader()
        batches = iter(first)
        _plain(job, batches, SAVED)
        saved, place = job.saved(), first.state_dict()
        _plain(job, batches, KILLED)
        again, second = _went_on(job, saved), loader()
        if right:
            second.load_state_dict(place)
        _plain(again, iter(second), LAST)
        return job.rows

    return run


def _streaming(shuffle: bool) -> Callable[[bool, int], Rows]:
    def run(right: bool, seed: int) -> Rows:
        from streaming import MDSWriter, StreamingDataLoader, StreamingDataset
        from streaming.base.util import clean_stale_shared_memory

        rows = samples_of("text", (LAST + 100) * BATCH, seed)

        def loader() -> Any:
            clean_stale_shared_memory()
            data = StreamingDataset(
                local=folder, batch_size=BATCH, shuffle=shuffle, shuffle_seed=seed, num_canonical_nodes=1
            )
            return StreamingDataLoader(data, batch_size=BATCH)

        def batches(of: Any) -> Iterator[Any]:
            for batch in of:
                yield batch["at"], batch["row"]

        folder = tempfile.mkdtemp(dir=_scratch().name)  # the package's threads read it until they end
        columns = {"at": "int", "row": f"ndarray:int16:{rows.shape[1]}"}
        with MDSWriter(out=folder, columns=columns) as writer:
            for at, row in enumerate(rows.numpy()):
                writer.write({"at": at, "row": row})
        job, first = TinyJob(seed=seed), loader()
        source = batches(first)
        _plain(job, source, SAVED)
        saved, place = job.saved(), first.state_dict()
        _plain(job, source, KILLED)
        source.close()
        again, second = _went_on(job, saved), loader()
        if right:
            second.load_state_dict(place)
        _plain(again, batches(second), LAST)
        return job.rows

    return run


@lru_cache(maxsize=1)
def _scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


# --- epochs ---------------------------------------------------------------------------------------------------------


def _accelerate(right: bool, seed: int) -> Rows:
    """Killed in the second epoch; the sampler's epoch has to be set before its first batches are skipped."""
    from accelerate import Accelerator, DataLoaderConfiguration

    data = _samples(seed, EPOCH, "fixed")

    def loader() -> Any:
        torch.manual_seed(seed)
        accelerator = Accelerator(
            cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=seed)
        )
        return accelerator, accelerator.prepare(DataLoader(data, batch_size=BATCH, shuffle=True))

    def epochs(accelerator: Any, whole: Any, first: int, skip: int) -> Iterator[Any]:
        for epoch in range(first, 99):
            if epoch == first or right:
                whole.set_epoch(epoch if right or skip == 0 else 0)
            part = accelerator.skip_first_batches(whole, skip) if epoch == first and skip else whole
            yield from part

    job = TinyJob("fixed", seed=seed)
    batches = epochs(*loader(), 0, 0)
    _plain(job, batches, SAVED)
    saved = job.saved()
    _plain(job, batches, KILLED)
    again = _went_on(job, saved)
    _plain(again, epochs(*loader(), SAVED // EPOCH, SAVED % EPOCH), LAST)
    return job.rows


def _distributed(right: bool, seed: int) -> Rows:
    data = _samples(seed, 2 * EPOCH, "fixed")
    sampler = DistributedSampler(data, num_replicas=2, rank=0, shuffle=True, seed=seed)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)

    def epochs() -> Iterator[Any]:
        for epoch in range(99):
            if right:
                sampler.set_epoch(epoch)
            yield from loader

    job = TinyJob("fixed", seed=seed)
    _plain(job, epochs(), LAST)
    return job.rows


CASES = (
    Case("lightning", "the sampler starts over, unshuffled", _lightning(""), also="torchdata"),
    Case("lightning", "the sampler starts over, shuffled with one seed", _lightning("seeded"), also="torchdata"),
    Case("lightning", "the sampler starts over, shuffled again", _lightning("again"), repeats=False, also="torchdata"),
    Case("torchdata", "StatefulDataLoader without its state, unshuffled", _stateful(shuffle=False)),
    Case("torchdata", "StatefulDataLoader without its state, shuffled", _stateful(shuffle=True)),
    Case("streaming", "StreamingDataset without its state, unshuffled", _streaming(shuffle=False)),
    Case("streaming", "StreamingDataset without its state, shuffled", _streaming(shuffle=True)),
    Case("accelerate", "skip_first_batches in epoch 2 without set_epoch", _accelerate),
    Case("torch", "DistributedSampler without set_epoch", _distributed, since=EPOCH + 1),
)
