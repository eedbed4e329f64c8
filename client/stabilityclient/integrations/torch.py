"""A training loop of one's own in torch (DDP, FSDP2, one process): saved, resumed and rolled back in three lines.

    from stabilityclient.integrations.torch import Training

    training = Training(run, "checkpoints", model=model, optimizer=optimizer, loader=loader, save_every=100)
    for step in training.steps(stop=10_001):
        inputs = training.batch()

Features and limits: docs/integrations/torch.md.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stabilityclient.integrations.data import Batches, ids_of
from stabilityclient.integrations.shared.adapter import Adapter
from stabilityclient.integrations.shared.ranks import agreed, rank_and_world
from stabilityclient.integrations.shared.rates import scale_rates
from stabilityclient.integrations.shared.skips import Skips
from stabilityclient.integrations.shared.torch_state import Parts, seed_random_numbers
from stabilityclient.integrations.shared.unsaved import Order
from stabilityclient.rollback.decision import Rollback
from stabilityclient.start import write_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from stabilityclient.run import Run

__all__ = ["Training"]

#: In the folder of the checkpoints: the name of the one that was saved or gone back to last; not always the newest.
_LATEST = "latest"


class Training(Adapter):
    """Runs the steps of a job, saves them, and goes back to them on command.

    Make it on all ranks, after the process group, with the models as they are trained (wrapped by DDP or FSDP2). It
    continues from the checkpoint that the plan of a restart names, else from the last one saved or rolled back to.

    Args:
        run: of :func:`stabilityclient.init`.
        folder: of the checkpoints; all nodes must see it.
        loader: a DataLoader or the like, or a function that draws the next batch. None: :meth:`batch` can't be called.
        save_every: steps between two checkpoints.
        keep: how many checkpoints are kept, the newest ones; None keeps all. Deleted ones can't be rolled back to.
        batches_per_step: how often :meth:`batch` is called in a step (gradient accumulation).
        resume: False begins at step 1, whether or not ``folder`` has checkpoints.
        parts: models, optimizers, schedules, scalers and the like, by any names.

    Attributes:
        step: the last one that is done; 0 before the first.
        lr_scale: product of the factors that were ordered on the way to this state. They are in the optimizers and in
            torch's schedules already; rates set by hand at each step are to be multiplied with it.

    Raises:
        TypeError: a part has no state. ValueError: a number that is none from 1 on; an optimizer of a model that is
            not given; a checkpoint that can't be loaded.
    """

    def __init__(
        self,
        run: Run,
        folder: str | os.PathLike[str],
        *,
        loader: Iterable[Any] | Callable[[], Any] | None = None,
        save_every: int = 1_000,
        keep: int | None = None,
        batches_per_step: int = 1,
        resume: bool = True,
        **parts: Any,
    ) -> None:
        retained = 1 if keep is None else keep
        for name, value in (("save_every", save_every), ("keep", retained), ("batches_per_step", batches_per_step)):
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r:.80}, expected a whole number from 1 on")
        super().__init__(run)
        self.step = 0
        self.lr_scale = 1.0
        self._folder = Path(folder).absolute()
        self._save_every = save_every
        self._keep = keep
        self._parts = self._parts_of(parts)
        self._batches = None if loader is None else Batches(loader)
        self._skips = Skips()
        self._per_step = batches_per_step
        self._drawn = 0
        self._saved: int | None = None
        self._promise(
            *(["lr_scale"] if self._parts.optimizers else []),
            *(["skip_batches", "skip_range"] if self._batches is not None else []),
            *(["seed"] if self._takes_seeds() else []),
        )
        run.on_checkpoint(self._save_on_command)
        if resume:
            self._resume()

    def steps(self, stop: int | None = None) -> Iterator[int]:
        """Yield the next step, and so on before ``stop``; between two steps save, go back or end as is due.

        The step yielded after a rollback is the one behind the checkpoint. The last step is saved, at ``stop`` and on
        an ordered stop.
        """
        while True:
            order = self._run.boundary(self.step + 1, stop)
            if isinstance(order, Rollback):
                self._go_back(order)
                continue
            if order is not None or (stop is not None and self.step + 1 >= stop):
                break
            self._drawn = 0
            yield self.step + 1
            self.step += 1
            if self.step % self._save_every == 0:
                self.save()
        if self.step and self._saved != self.step:
            self.save()

    def batch(self) -> Any:
        """Return the next batch of the loader, and report which one it was; batches left out on order are passed."""
        if self._batches is None:
            raise ValueError("batch() was called, and Training got no loader: Training(..., loader=loader)")
        step = self.step + 1
        with self._run.phase("data"):
            if self._drawn == 0:
                self._batches.skip(self._per_step * self._skips.before(step))
            batch = next(self._batches)
        self._drawn += 1
        ids = ids_of(batch)
        if ids is not None:
            self._run.data(step, ids=ids, epoch=self._batches.epoch, position=self._batches.position)
        return batch

    def save(self) -> None:
        """Save a checkpoint of the state after :attr:`step`; all ranks call it at the same step."""
        path = self._folder / f"step-{self.step}"
        own = {"step": self.step, "lr_scale": self.lr_scale, "skips": self._skips.state()}
        own["ordered"] = self._unsaved.ordered
        if self._batches is not None:
            own["data"] = self._batches.state_dict()
        with self._run.phase("checkpoint"):
            agreed(lambda: _discard(path))
            self._parts.save(path, own)
            self._stand_on(path)
            self._unsaved.saved(path)
        self._saved = self.step
        if rank_and_world()[0] == 0:
            self._run.checkpoint(self.step, path)

    # --- inside --------------------------------------------------------------------------------------------------

    def _save_on_command(self, step: int) -> None:
        if self._saved != step:
            self.save()

    def _parts_of(self, parts: dict[str, Any]) -> Any:
        """Return the object that saves and loads the parts: :class:`Parts`, or one like it."""
        return Parts(parts)

    def _takes_seeds(self) -> bool:
        return self._batches is None or self._batches.reseeds()

    def _resume(self) -> None:
        plan, path = agreed(self._from_where)
        if path is None:
            return
        if problem := self._parts.problem(path):
            raise ValueError(f"{problem}; with resume=False training begins at step 1")
        order = self._unsaved.take_up(path, self._load(path))
        if order is not None:
            self._scale(order.lr_scale)
            if order.skip_places is not None:
                self._skips.leave_out(*order.skip_places)
            self._reseed(order.seed)
        elif plan is not None and plan["id"] != self._unsaved.ordered:
            self._scale(plan.get("lr_scale"))
            self._skips.carry_out(self.step, plan.get("skip_range"), plan.get("skip_batches"), self._skips)
            takes_seeds = self._takes_seeds()
            if takes_seeds:
                self._reseed(plan.get("seed"))
            self._unsaved.follow_plan(plan, seeds=takes_seeds)

    def _from_where(self) -> tuple[dict[str, Any] | None, str | None]:
        """Return the plan that holds, with its id, and the checkpoint to resume from; asked on the first rank."""
        plan = self._unsaved.plan
        latest = self._latest()
        named = None if plan is None else plan.get("checkpoint")
        if plan is None or not named or (latest is not None and self._unsaved.follows_plan(latest)):
            return None, latest
        path = named["path"] or self._folder / f"step-{named['step']}"
        return plan | {"id": self._unsaved.plan_id}, str(path)

    def _go_back(self, rollback: Rollback) -> None:
        path = str(rollback.checkpoint)
        if not self._accepts(rollback, lambda: self._parts.problem(path)):
            return
        before = self._skips
        ordered = self._load(path)
        if self.step != rollback.to_step:
            self._unsaved.note(path, Order(rollback.command_id), ordered)
            self._stand_on(Path(path))
            self._report_back(rollback, self.step, {})
            return
        applied: dict[str, Any] = {}
        if rollback.lr_scale is not None:
            applied = {"lr_scale": rollback.lr_scale, "rates": self._scale(rollback.lr_scale)}
        places = self._skips.carry_out(self.step, rollback.skip_range, rollback.skip_batches, before)
        self._reseed(rollback.seed)
        for name in ("skip_batches", "skip_range", "seed"):
            if (value := getattr(rollback, name)) is not None:
                applied[name] = value
        self._unsaved.note(path, Order.of(rollback, places), ordered)
        self._stand_on(Path(path))
        self._report_back(rollback, self.step, applied)

    def _load(self, path: str) -> str:
        """Load a checkpoint, and return the id of the order that changed its state last."""
        own, share = self._parts.load(path)
        self.step = self._saved = own["step"]
        self.lr_scale = own["lr_scale"]
        self._skips = Skips(own["skips"])
        if self._batches is not None and "data" in own:
            self._batches.load_state_dict(own["data"], share=share)
        return str(own.get("ordered", ""))

    def _scale(self, factor: float | None) -> list[float]:
        if factor is None:
            return []
        self.lr_scale *= factor
        return scale_rates(self._parts.optimizers.values(), self._parts.schedules, factor)

    def _reseed(self, seed: int | None) -> None:
        """Draw all that comes from another seed; each rank has random numbers of its own."""
        if seed is None:
            return
        rank, _ = rank_and_world()
        seed_random_numbers(seed + rank)
        if self._batches is not None:
            self._batches.reseed(seed, rank)

    def _stand_on(self, path: Path) -> None:
        """Note on disk from where a next start continues, and delete surplus checkpoints."""
        agreed(lambda: self._note(path))

    def _note(self, path: Path) -> None:
        name = path.name if path.parent == self._folder else str(path)
        write_whole(str(self._folder / _LATEST), name.encode(), durable=True, mode=0o666)
        if self._keep is not None:
            saved = sorted(self._folder.glob("step-*"), key=lambda one: one.stat().st_mtime)
            for old in saved[: -self._keep]:
                if old != path:
                    _discard(old)

    def _latest(self) -> str | None:
        try:
            return str(self._folder / (self._folder / _LATEST).read_text().strip())
        except FileNotFoundError:
            return None


def _discard(path: Path) -> None:
    """Delete a checkpoint, first the file that makes it whole: half of one must not look like one."""
    (path / ".metadata").unlink(missing_ok=True)
    shutil.rmtree(path, ignore_errors=True)
