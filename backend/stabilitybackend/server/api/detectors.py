"""Detectors, kinds of incidents, and the settings of detectors for one run. Shapes: docs/api.md."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.judging.detection.naming.headline import headline_of
from stabilitybackend.judging.detection.naming.mixture_curves import MAX_BUCKETS, mixture_of_run, with_curves
from stabilitybackend.judging.detection.naming.watched_report import watched_of
from stabilitybackend.judging.detectors.engine.base import Detector
from stabilitybackend.judging.detectors.registry import DETECTORS, detector_list
from stabilitybackend.schema.detectors import Detectors, ListedRunDetectors, RunDetectors
from stabilitybackend.schema.kinds import IncidentKinds, served
from stabilitybackend.schema.mixture import Mixture
from stabilitybackend.schema.pages.headline import Headline
from stabilitybackend.schema.watched import WatchedMetrics
from stabilitybackend.server.api.access import Commander, Reader, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.api.reading import Threads

__all__ = ["SettingsBody", "router"]

router = APIRouter(prefix="/api/v1", tags=["detectors"])


class SettingsBody(BaseModel):
    """Differences from the defaults. Names and ranges are checked by the detectors' registry."""

    model_config = ConfigDict(extra="forbid")

    settings: Any = Field(
        description="detector -> parameter -> number, as GET /api/v1/detectors lists them; {} brings the defaults back",
        examples=[{"curve": {"sensitivity": 0.5}}],
    )


@router.get("/detectors", responses=answers(Detectors))
async def detectors(reader: Reader) -> Response:
    """All detectors, in the order of their right to an event, and their parameters."""
    return answer({"detectors": _detectors()})


@router.get("/incident_kinds", responses=answers(IncidentKinds))
async def incident_kinds(reader: Reader) -> Response:
    """All kinds of incidents: label, subject and consequences."""
    return answer({"kinds": [kind for name, kind in served().items() if name]})


@router.get("/runs/{run_id}/detectors", responses=answers(ListedRunDetectors))
async def settings(reader: Reader, worker: Worker) -> Response:
    """Settings of a run, their changes with author and time, and all possible settings."""
    await worker.detectors.refresh()
    set_now = worker.detectors.shown()
    return answer({"settings": set_now.settings, "changes": set_now.changes, "detectors": _detectors()})


@router.put("/runs/{run_id}/detectors", responses=answers(RunDetectors, 200, 202))
async def set_detectors(body: SettingsBody, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Replace all that is set for a run; it holds for the points that come from now on.

    202: no worker follows the run now; it holds from where the next one is when it takes it.
    """
    found = await worker.detectors.replace(body.settings, commander.name, worker.cursor)
    await record.did(commander, "settings.detectors", "", ", ".join(body.settings) or "all back to their defaults")
    return answer(found, 202 if worker.fence.reads_only else 200)


@router.get("/runs/{run_id}/watched", responses=answers(WatchedMetrics))
async def watched(reader: Reader, worker: Worker) -> Response:
    """Watched metrics of the run with role and reason, and the unwatched ones."""
    state = worker.state
    return answer(watched_of(state.judge.names, state.store.metrics(), state.judge.followed))


@router.get("/runs/{run_id}/headline", responses=answers(Headline))
async def headline(reader: Reader, worker: Worker) -> Response:
    """Metrics shown first: of the strip, of the large chart and of the small ones."""
    names = worker.state.store.metrics()
    return answer(headline_of(watched_of(worker.state.judge.names, names), names))


@router.get("/runs/{run_id}/mixture", responses=answers(Mixture))
async def mixture(
    reader: Reader,
    worker: Worker,
    threads: Threads,
    buckets: Annotated[
        int | None, Query(ge=1, le=MAX_BUCKETS, description="curves of at most about so many buckets")
    ] = None,
    start: Annotated[int | None, Query(description="first step of the curves, inclusive")] = None,
    stop: Annotated[int | None, Query(description="last step of the curves, inclusive")] = None,
) -> Response:
    """Declared and actual mixture of the data, with the band of chance."""
    judge = worker.state.judge
    found = mixture_of_run(judge)
    if buckets is None or not found.mixtures:
        return answer(found)
    made = with_curves(judge, found, buckets, start, stop)
    return await threads.run(lambda: answer(made()))


@cache
def _detectors() -> list[dict[str, Any]]:
    return [{**one, **_idea(DETECTORS[one["name"]]())} for one in detector_list()]


def _idea(detector: Detector) -> dict[str, Any]:
    return {"text": _text(inspect.getdoc(type(detector)) or ""), "every_rank": detector.every_rank}


def _text(doc: str) -> str:
    """Return the idea of a detector: paragraphs of its docstring before arguments, source and example."""
    paragraphs = [" ".join(paragraph.split()) for paragraph in doc.split("\n\n")]
    ends = ("Args:", "Parameters", "Source", "Example", "Attributes:")
    idea: list[str] = []
    for paragraph in paragraphs:
        if paragraph.startswith(ends):
            break
        plain = paragraph.removeprefix("Idea: ").replace("``", "")
        idea.append(plain[:1].upper() + plain[1:])
    return "\n".join(idea)
