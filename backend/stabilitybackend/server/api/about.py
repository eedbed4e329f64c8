"""Facts of a run beside its points, and its differences from another one: ``/api/v1/runs/{run_id}/about``.

Shapes: docs/api.md.
"""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.access.auth import Principal
from stabilitybackend.runs.manager import RunManager
from stabilitybackend.runs.run_listing import AboutChange
from stabilitybackend.runs.worker import RunWorker
from stabilitybackend.schema.job.about import (
    MAX_NAME_CHARS,
    MAX_NOTES_CHARS,
    MAX_TAG_CHARS,
    MAX_TAGS,
    AboutRun,
    RunDiff,
    RunLaunch,
)
from stabilitybackend.schema.runs import Run
from stabilitybackend.server.about.view import MAX_LAUNCHES, diff, launches_of
from stabilitybackend.server.api.access import Commander, Manager, Reader, Recorded, Worker, check_project
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.storage.redis_link import redis_errors

__all__ = ["AboutBody", "router", "run_launches"]

router = APIRouter(prefix="/api/v1/runs/{run_id}", tags=["runs"])

#: Value of ``against`` that lets the server choose.
LAST_GOOD = "last_good"
#: Runs of one page of the list, and pages that are looked through for the last good one, newest first.
PAGE_RUNS, MAX_PAGES = 1_000, 10


Tags = Annotated[list[Annotated[str, Field(min_length=1, max_length=MAX_TAG_CHARS)]], Field(max_length=MAX_TAGS)]


class AboutBody(BaseModel):
    """Changes; a missing or null field stays. An empty name restores that of the job."""

    model_config = ConfigDict(extra="forbid")

    name: str | None = Field(None, max_length=MAX_NAME_CHARS)
    tags: Tags | None = Field(None, description="all tags")
    add_tags: Tags = Field([], description="to those that it has: of two who add at once none is lost")
    remove_tags: Tags = Field([], description="from those that it has")
    notes: str | None = Field(None, max_length=MAX_NOTES_CHARS)
    notes_before: str | None = Field(
        None, description="the notes that these were written over: 409 notes_changed where it has others by now"
    )


@router.get("/about", responses=answers(AboutRun))
async def about(
    reader: Reader,
    manager: Manager,
    worker: Worker,
    against: Annotated[str, Query(max_length=200, description="a run to compare with, or last_good")] = "",
) -> Response:
    """Config, facts of each launch, tags and notes of a run; and differences from another run."""
    return answer(await _about(reader, manager, worker, against))


@router.put("/about", responses=answers(AboutRun))
async def edit(body: AboutBody, commander: Commander, manager: Manager, worker: Worker, record: Recorded) -> Response:
    """Change name, tags or notes of a run. It is noted who did."""
    change = AboutChange(
        name=None if body.name is None else body.name.strip(),
        tags=None if body.tags is None else _plain(body.tags),
        add_tags=_plain(body.add_tags), remove_tags=_plain(body.remove_tags),
        notes=body.notes, notes_before=body.notes_before,
    )  # fmt: skip
    with redis_errors():
        await worker.listing.edit(commander.name, time.time(), change)
    given = [name for name, value in body.model_dump().items() if value not in (None, [])]
    await record.did(commander, "run.edit", "", ", ".join(given))
    return answer(await _about(commander, manager, worker, ""))


def _plain(tags: list[str]) -> list[str]:
    return list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))


async def _about(identity: Principal, manager: RunManager, worker: RunWorker, against: str) -> AboutRun:
    run = worker.run()
    with redis_errors():
        notes, edited = await worker.listing.about()
    launches = run_launches(worker)
    found, no_diff = None, ""
    if against:
        found, no_diff = await _diff(identity, manager, run, launches, against)
    return AboutRun(
        run_id=run.run_id,
        name=run.name,
        project=run.project,
        config=run.config,
        tags=run.tags,
        notes=notes if edited is None or edited.notes is None else edited.notes,
        edited=edited,
        launches=launches[:MAX_LAUNCHES],
        older=max(0, len(launches) - MAX_LAUNCHES),
        diff=found,
        no_diff=no_diff,
    )


def run_launches(worker: RunWorker) -> list[RunLaunch]:
    """Return the launches of a run, newest first."""
    state = worker.state
    reported = state.resumes.reported
    fold = state.fold
    return launches_of(state.launch_facts, fold.launches.started_with, fold.segment_of, reported.environments)


async def _diff(
    identity: Principal, manager: RunManager, run: Run, launches: list[RunLaunch], against: str
) -> tuple[RunDiff | None, str]:
    """Return the differences, or why they are unknown."""
    why = ""
    if against == LAST_GOOD:
        good, why = await _last_good(manager, run)
        if good is None:
            return None, why
        against = good
    await check_project(identity, manager, against)
    other = await manager.glance(against)
    shown = other.run()
    return diff((shown.run_id, shown.name, shown.config, run_launches(other)), run.config, launches, why), ""


async def _last_good(manager: RunManager, run: Run) -> tuple[str | None, str]:
    """Return the last good run of the project before ``run``, and why it is that; or None, and why there is none.

    Good: it finished and no incident of it is open. Where none did, one that runs and has no open incident.
    """
    healthy: str | None = None
    cursor = None
    for _ in range(MAX_PAGES):
        page = await manager.runs(PAGE_RUNS, cursor, run.project)
        for one in page.runs:
            if one.run_id == run.run_id or one.created >= run.created or one.open_incidents:
                continue
            if one.status in ("finished", "offline"):
                return one.run_id, "the newest run of the project before this one that finished without open incidents"
            if one.status == "running":
                healthy = healthy or one.run_id
        cursor = page.next
        if cursor is None:
            break
    if healthy is not None:
        return healthy, "the newest run of the project before this one that runs without open incidents"
    return None, f"no earlier run of the project {run.project!r:.80} finished without open incidents"
