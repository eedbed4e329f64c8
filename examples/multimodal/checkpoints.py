"""Checkpoints that are whole or not there: written under a temporary name, renamed when every rank is done.

A folder is named ``step-000225-g1``: the step, and how often the job had gone back before. So the checkpoint of a
dead branch and that of the branch which replaced it never share a path. From which one the next start goes on is noted
beside them: after a rollback that is not the newest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch.distributed as dist
import torch.distributed.checkpoint as dcp

__all__ = ["CheckpointStore", "Place"]

_NAME = re.compile(r"step-(\d+)-g(\d+)")
_PLACE = "place.json"


class Place(NamedTuple):
    """From where a start goes on.

    Args:
        path: of the checkpoint.
        changes: that were ordered of its state and are in no checkpoint yet.
        plan: by which the job came up, "" for none.
    """

    path: str
    changes: Mapping[str, Any] = {}
    plan: str = ""


class CheckpointStore:
    """Saves, loads and thins out the checkpoints of one job. Every method is called by all ranks together.

    Args:
        folder: where the checkpoints lie; on a file system that all ranks see.
        keep: the newest ones that are kept.
        keep_every: besides, those whose step is a multiple of this are kept, so that a late decision can go far back.
    """

    def __init__(self, folder: Path, *, keep: int = 12, keep_every: int = 100) -> None:
        self._folder = folder
        self._keep = keep
        self._keep_every = keep_every
        folder.mkdir(parents=True, exist_ok=True)
        self._generation = max((generation for generation, _, _ in self._list()), default=-1) + 1
        self._plan = ""
        dist.barrier()  # nobody writes before everybody has looked

    def place(self) -> Place | None:
        """Return from where a start goes on, or None when there is no checkpoint."""
        file = self._folder / _PLACE
        return Place(**json.loads(file.read_text())) if file.exists() else None

    def stand_on(self, place: Place) -> None:
        """Let the next start go on from there, whenever this one dies."""
        self._plan = place.plan
        dist.barrier()  # nobody writes before everybody has read
        if dist.get_rank() == 0:
            partial = self._folder / f"{_PLACE}.partial"
            with partial.open("w") as file:
                json.dump(place._asdict(), file)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self._folder / _PLACE)
        dist.barrier()

    def save(self, step: int, state: dict[str, Any]) -> Path:
        """Write ``state`` as the checkpoint of ``step`` and return its path."""
        final = self._folder / f"step-{step:06d}-g{self._generation}"
        partial = final.with_name(final.name + ".partial")
        dcp.save(state, checkpoint_id=str(partial))
        dist.barrier()
        if dist.get_rank() == 0:
            partial.rename(final)
        self.stand_on(Place(str(final), plan=self._plan))
        if dist.get_rank() == 0:
            self._thin_out()
        return final

    def load(self, path: Path, state: dict[str, Any]) -> None:
        """Fill ``state`` in place from the checkpoint at ``path``; what is saved next belongs to a new branch."""
        dcp.load(state, checkpoint_id=str(path))
        self._generation += 1
        dist.barrier()  # nobody thins out what another rank still reads

    def _list(self) -> list[tuple[int, int, Path]]:
        """Return (generation, step, path) of every whole checkpoint, oldest first."""
        names = ((path, _NAME.fullmatch(path.name)) for path in self._folder.iterdir())
        return sorted((int(match[2]), int(match[1]), path) for path, match in names if match)

    def _thin_out(self) -> None:
        for _, step, path in self._list()[: -self._keep]:
            if step % self._keep_every:
                shutil.rmtree(path, ignore_errors=True)
