"""The route of button presses, where Slack can reach the server. Socket Mode needs none."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from fastapi import APIRouter, Request, Response

from stabilitybackend.base.errors import BadRequest, NotFound, Unauthorized, Unavailable
from stabilitybackend.server.api.access import AlertingPart
from stabilitybackend.server.api.answers import answer, answers
from stabilityplugins.slack.channel import SlackAppSink

__all__ = ["MAX_SLACK_BYTES", "router"]

#: Longest body of a request, bytes: it holds the whole message with the button.
MAX_SLACK_BYTES = 256 * 1024

router = APIRouter(prefix="/api/v1", tags=["alerting"])


class SlackAnswer(msgspec.Struct, omit_defaults=True):
    """Answer to a submitted question; a press has an empty one.

    Attributes:
        response_action: ``clear`` closes it, ``update`` shows ``view`` in its place, in Slack's Block Kit.
    """

    response_action: Literal["clear", "update"]
    view: dict[str, Any] | None = None


@router.post("/slack", responses=answers(SlackAnswer))
async def slack(request: Request, alerting: AlertingPart) -> Response:
    """Apply a press or a submitted question, signed by Slack within the last five minutes, once."""
    apps = [
        sink.requests for sink in alerting.service.sinks if isinstance(sink, SlackAppSink) and sink.requests is not None
    ]
    if not apps:
        raise NotFound(
            "this server takes nothing from Slack over HTTP",
            hint="set STABILITY_SLACK_SIGNING_SECRET: README of the Slack plug-in",
        )
    body = await request.body()
    addressed = next((app for app in apps if app.signed(request.headers, body)), apps[0])  # by the secret of the app
    status, content = await addressed.answer(request.headers, body)
    if status == 401:
        raise Unauthorized(
            "the request is not signed by the Slack app, older than five minutes, or a repetition",
            hint="check STABILITY_SLACK_SIGNING_SECRET and the clock of this machine",
            code="bad_signature",
        )
    if status == 400:
        raise BadRequest(
            "the request holds no payload of Slack", hint="it is for Slack alone: README of the Slack plug-in"
        )
    if status != 200:
        raise Unavailable("Redis is away, so it is not known whether this came before", hint="press again")
    return Response() if content is None else answer(SlackAnswer(**content))
