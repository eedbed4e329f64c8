"""Button presses of Slack, where Slack can reach the server. Socket Mode needs no route."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stabilitybackend.base.errors import BadRequest, NotFound, Unauthorized, Unavailable
from stabilitybackend.schema.server import SlackAnswer
from stabilitybackend.server.api.access import AlertingPart
from stabilitybackend.server.api.answers import answer, answers
from stabilityplugins.slack.channel import SlackAppSink

__all__ = ["router"]

router = APIRouter(prefix="/api/v1", tags=["alerting"])


@router.post("/slack", responses=answers(SlackAnswer))
async def slack(request: Request, alerting: AlertingPart) -> Response:
    """Take what Slack signed and sent within five minutes, once; it says who pressed what."""
    apps = [
        sink.requests for sink in alerting.service.sinks if isinstance(sink, SlackAppSink) and sink.requests is not None
    ]
    if not apps:
        raise NotFound(
            "this server takes nothing from Slack over HTTP",
            hint="set STABILITY_SLACK_SIGNING_SECRET: README of the Slack plug-in",
        )
    body = await request.body()
    its = next((app for app in apps if app.signed(request.headers, body)), apps[0])  # each app has a secret of its own
    status, content = await its.answer(request.headers, body)
    if status == 401:
        raise Unauthorized(
            "the request is not signed by the Slack app, is older than five minutes, or came before",
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
