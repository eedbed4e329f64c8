"""The autopilot of a run: its policy, its actions and its waits. Shapes: docs/api.md, words: docs/autopilot.md."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict, Field

from stabilitybackend.acting.autopilot.policy import POLICY_FILE
from stabilitybackend.base.yaml_file import MAX_YAML_CHARS
from stabilitybackend.schema.job.autopilot import Autopilot
from stabilitybackend.schema.json_data import NAME_CHARS
from stabilitybackend.server.api.access import Commander, Reader, Recorded, Worker
from stabilitybackend.server.api.answers import answer, answers

__all__ = ["router"]

router = APIRouter(prefix="/api/v1/runs/{run_id}/autopilot", tags=["autopilot"])


class PolicyBody(BaseModel):
    """A policy, as docs/autopilot.md has it."""

    model_config = ConfigDict(extra="forbid")

    policy: str = Field(description="the YAML", max_length=MAX_YAML_CHARS, examples=["dry_run: true\n"])
    file: str = Field(default=POLICY_FILE, description="its name, for messages", min_length=1, max_length=NAME_CHARS)


@router.get("", responses=answers(Autopilot))
async def shown(reader: Reader, worker: Worker) -> Response:
    """State and policy of the autopilot, its actions with their reasons, and its present wait."""
    await worker.autopilot.refresh()
    return answer(worker.autopilot.shown(worker.state))


@router.put("", responses=answers(Autopilot))
async def put(body: PolicyBody, commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Turn it on with a policy; a wrong one is refused with file, line and the expected value."""
    await worker.autopilot.put(body.policy, commander.name, body.file)
    await record.did(commander, "autopilot.policy", "", worker.autopilot.mode)
    worker.autopilot.publish(worker.state)
    worker.rest.came()
    return answer(worker.autopilot.shown(worker.state))


@router.delete("", responses=answers(Autopilot))
async def stop(commander: Commander, worker: Worker, record: Recorded) -> Response:
    """Turn it off now. Its rollback under way continues."""
    await worker.autopilot.put(None, commander.name)
    await record.did(commander, "autopilot.off")
    worker.autopilot.publish(worker.state)
    return answer(worker.autopilot.shown(worker.state))
