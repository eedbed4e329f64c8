"""A clear 404 for everything below ``/api`` that is no call."""

from __future__ import annotations

from fastapi import APIRouter, Response

from stabilitybackend.errors import NotFound

__all__ = ["fallback"]

#: Included after all other routes: Dash would answer an unknown API path with its HTML page.
fallback = APIRouter()


@fallback.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def unknown(path: str) -> Response:
    """Say that there is no such call."""
    raise NotFound(f"there is no /api/{path}", hint="the calls are listed at /api/v1/openapi.json")
