"""``GET /metrics`` for Prometheus. Who may read runs may read it: on loopback without keys that is everybody."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stabilitybackend.api.access import Reader
from stabilitybackend.api.answers import answers

__all__ = ["router"]

router = APIRouter(tags=["server"])


@router.get("/metrics", response_class=Response, responses=answers(None, media_types=(CONTENT_TYPE_LATEST,)))
async def metrics(reader: Reader, request: Request) -> Response:
    """The server's own metrics in Prometheus' text format; docs/operations.md says what they mean."""
    reader.require_all_projects()
    return Response(generate_latest(request.app.state.metrics), media_type=CONTENT_TYPE_LATEST)
