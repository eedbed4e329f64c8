"""The server itself: login, and a clear 404 for everything else below ``/api``."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from stabilitybackend.auth import login_cookie, logout_cookie
from stabilitybackend.errors import NotFound

__all__ = ["fallback", "router"]

router = APIRouter(tags=["server"])
#: Included after all other routes: Dash would answer an unknown API path with its HTML page.
fallback = APIRouter()


class Login(BaseModel):
    """A key, pasted by a person."""

    key: str


@router.post("/api/v1/login")
async def login(body: Login, request: Request) -> Response:
    """Check a key and keep it in a cookie that scripts can't read."""
    identity = await request.app.state.authenticator.authenticate({"authorization": f"Bearer {body.key}"}, {})
    secure = request.app.state.origins.is_https(request.scope["headers"], request.scope["scheme"])
    answer = JSONResponse({"name": identity.name, "scopes": sorted(identity.scopes)})
    answer.headers["set-cookie"] = login_cookie(body.key, secure=secure)
    return answer


@router.post("/api/v1/logout")
async def logout() -> Response:
    """Forget the key."""
    answer = JSONResponse({})
    answer.headers["set-cookie"] = logout_cookie()
    return answer


@fallback.api_route("/api/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def unknown(path: str) -> Response:
    """Say that there is no such call."""
    raise NotFound(f"there is no /api/{path}", hint="the calls are listed at /api/v1/openapi.json")
