"""A consumer: values that are NaN, counted by metric, with a call and a panel on the page of a run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from fastapi import APIRouter

from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.hooks import hook
from stabilitybackend.lineage.batch import Batch
from stabilitybackend.lineage.consumer import Consumer, Effects
from stabilitybackend.server.api.access import Reader, Worker

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["runs"])


class NanCounts(Stateful, Consumer):
    """Values that are NaN, by metric, on all timelines."""

    counts: dict[str, int] = fresh(dict)

    def state(self) -> Mapping[str, Stateful]:
        return {"nan_counts": self}

    def rows(self, batch: Batch, effects: Effects) -> None:
        for table in batch.tables:
            for name, found in zip(table.names, np.isnan(table.values).sum(axis=(1, 2)), strict=True):
                if found:
                    self.counts[name] = self.counts.get(name, 0) + int(found)


@router.get("/nan_counts")
async def nan_counts(reader: Reader, worker: Worker) -> dict[str, int]:
    return worker.state[NanCounts].counts


@hook
def consumers() -> list[type[Consumer]]:
    return [NanCounts]


@hook
def routes() -> list[APIRouter]:
    return [router]


@hook
def pages() -> list[object]:
    from stabilityfrontend.extend import Api, panel

    @panel(page="/runs/{run}", title="NaN values")
    def nan_values(run: str, api: Api) -> str:
        counts = api.get("/runs/{run_id}/nan_counts", run_id=run)
        return ", ".join(f"{name}: {count}" for name, count in counts.items()) or "none"

    return [nan_values]
