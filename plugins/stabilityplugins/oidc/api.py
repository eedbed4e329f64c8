"""Sign-in at an OpenID provider, as a browser goes through it. Shapes: docs/api.md; promises: docs/security.md."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from stabilitybackend.access.sessions import (
    PERSON_LIFE_S,
    SignedIn,
    login_cookie,
    session_of,
    sign_in_cookie,
    sign_in_of,
)
from stabilitybackend.base.errors import NotFound, Unavailable
from stabilitybackend.server.api.access import server_of
from stabilitybackend.server.api.answers import answers
from stabilitybackend.server.stages import Access, Options, SignIn
from stabilityplugins.oidc.flows import FLOW_S
from stabilityplugins.oidc.provider_stage import ProviderSignIn
from stabilityplugins.oidc.refusals import SignInRefused
from stabilityplugins.oidc.sign_in import OidcSignIn

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["server"])


def _stage(request: Request) -> ProviderSignIn:
    stage = server_of(request)[SignIn]
    if not isinstance(stage, ProviderSignIn):
        raise NotFound(
            "nobody signs in at a provider here", hint="log in with a key at /login, or set STABILITY_OIDC_ISSUER"
        )
    return stage


@router.get("/oidc/start", status_code=303, response_class=Response, responses=answers(None, 303, media_types=()))
async def start(
    request: Request,
    next: Annotated[str, Query(max_length=4000, description="page that is wanted; of this server alone")] = "/",
    other: Annotated[bool, Query(description="as somebody else than who is signed in there")] = False,
) -> Response:
    """Begin a sign-in: go to the provider's page."""
    try:
        url, browser = await _stage(request).oidc.begin(next, other=other)
    except (SignInRefused, Unavailable) as error:
        return await _refuse(request, error)
    return _go(request, url, browser)


@router.get("/oidc/callback", status_code=303, response_class=Response, responses=answers(None, 303, media_types=()))
async def callback(request: Request) -> Response:
    """End a sign-in: the provider sends a person back. Opens a session, as a login with a key does."""
    way = _stage(request).oidc
    try:
        person, then = await way.finish(request.query_params, sign_in_of(request.headers, request.cookies))
        text = await _open(request, way, person)
    except (SignInRefused, Unavailable) as error:
        return await _refuse(request, error)
    below = _below(request)
    response = _go(request, f"{below}{then}", "")
    secure = _over_https(request)
    cookie = login_cookie(text, request.headers, secure=secure, life_s=PERSON_LIFE_S, below=below)
    response.headers.append("set-cookie", cookie)
    return response


async def _open(request: Request, way: OidcSignIn, person: SignedIn) -> str:
    """Open a session for a person, end the one that this browser had, and return the new one's id."""
    access = server_of(request)[Access]
    before = session_of(request.headers, request.cookies)
    text = await access.sessions.open(person)
    if before is not None:
        await access.sessions.close(before)
    principal = way.may(person)
    role = "nobody" if principal is None else principal.shown().role
    groups = f", groups {', '.join(person.groups)}" if person.groups else ""
    await access.audit.add(
        person.name, None, "login", "", f"at {way.settings.name} as {role}{groups}; {_address(request)}"
    )
    return text


async def _refuse(request: Request, error: SignInRefused | Unavailable) -> Response:
    """Redirect to the page with the reason; its text follows from the code alone."""
    refused = error if isinstance(error, SignInRefused) else SignInRefused("store_away", error.message)
    try:
        await _stage(request).refusals.note(refused, _address(request))
    except Unavailable:  # the log is in the same store: this one is in the server's own log alone
        pass
    query = urlencode({"refused": refused.code, "next": refused.then})
    return _go(request, f"{_below(request)}/login?{query}", "")


def _go(request: Request, where: str, browser: str) -> Response:
    """Redirect to an address, with the cookie of a sign-in that is under way; "" at its end."""
    response = RedirectResponse(where, 303)
    secure = _over_https(request)
    cookie = sign_in_cookie(browser, request.headers, secure=secure, life_s=FLOW_S, below=_below(request))
    response.headers.append("set-cookie", cookie)
    return response


def _below(request: Request) -> str:
    """Return the path of the public URL: by that one, and no other, browsers go to the provider and return."""
    return server_of(request)[Options].settings.below


def _over_https(request: Request) -> bool:
    return server_of(request)[Access].origins.is_https(request.scope["headers"], request.scope["scheme"])


def _address(request: Request) -> str:
    return "" if request.client is None else f"from {request.client.host}"
