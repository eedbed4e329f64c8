"""Logging in and out of the pages, and who one is. Shapes: docs/api.md."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from msgspec import structs
from pydantic import BaseModel, Field

from stabilitybackend.access.auth import Principal
from stabilitybackend.access.sessions import login_cookie, logout_cookies, session_of
from stabilitybackend.base.errors import Unauthorized
from stabilitybackend.schema.server import LoggedOut, Me, SignInWays
from stabilitybackend.server.api.access import Caller, audit, server_of
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.server.stages import Access, Options, SignIn

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["server"])


def _me(identity: Principal, request: Request) -> Me:
    return structs.replace(identity.shown(), two_persons=server_of(request)[Options].settings.two_persons)


class Login(BaseModel):
    """A key, pasted by a person."""

    key: str = Field(max_length=200)


@router.post("/login", responses=answers(Me))
async def login(body: Login, request: Request) -> Response:
    """Check a key and open a session for it; its id is in a cookie that scripts can't read."""
    access = server_of(request)[Access]
    by_key = await access.authenticator.authenticate({"authorization": f"Bearer {body.key}"}, {})
    identity = replace(by_key, session=True)
    assert identity.key_id is not None  # a key was sent, so a key was found
    text = await access.sessions.open(identity.key_id)
    await audit(request, identity, "login")
    secure = access.origins.is_https(request.scope["headers"], request.scope["scheme"])
    cookie = login_cookie(text, request.headers, secure=secure, below=request.scope.get("root_path", ""))
    response = answer(_me(identity, request))
    response.headers["set-cookie"] = cookie
    return response


@router.post("/logout", responses=answers(LoggedOut))
async def logout(request: Request) -> Response:
    """End the session of this browser, if it has one; where a provider signed it in, say where to sign out there."""
    access = server_of(request)[Access]
    text = session_of(request.headers, request.cookies)
    then: str | None = None
    if text is not None:
        session = await access.sessions.find(text)
        if session is not None and session.person is not None:
            then = await server_of(request)[SignIn].sign_out_url(session.person)
        try:
            identity = await access.authenticator.authenticate(request.headers, request.cookies)
        except Unauthorized:
            identity = None
        await access.sessions.close(text)
        if identity is not None and identity.session:
            await audit(request, identity, "logout")
    response = answer(LoggedOut(then))
    for cookie in logout_cookies(request.headers, request.scope.get("root_path", "")):
        response.headers.append("set-cookie", cookie)
    return response


@router.get("/sign_in", responses=answers(SignInWays))
async def ways(
    request: Request,
    refused: Annotated[str, Query(description="code of a sign-in that was refused")] = "",
) -> Response:
    """Return the provider for sign-ins besides keys, whether it answers, and why a sign-in was refused."""
    return answer(SignInWays(await server_of(request)[SignIn].provider(refused)))


@router.get("/me", responses=answers(Me))
async def me(caller: Caller, request: Request) -> Response:
    """The caller and their rights."""
    return answer(_me(caller, request))
