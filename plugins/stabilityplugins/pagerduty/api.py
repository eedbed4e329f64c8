"""The route of PagerDuty's webhooks."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from stabilityalerting import ActionRefused
from stabilitybackend.base.errors import BadRequest, NotFound, Unauthorized, Unavailable
from stabilitybackend.server.api.access import AlertingPart
from stabilitybackend.server.api.answers import answer, answers
from stabilitybackend.storage.redis_link import redis_errors
from stabilityplugins.pagerduty.channel import PagerDutySink
from stabilityplugins.pagerduty.webhooks import BadWebhook, PagerDutyAnswer

__all__ = ["MAX_PAGERDUTY_BYTES", "router"]

#: Longest webhook, bytes: PagerDuty drops longer ones itself.
MAX_PAGERDUTY_BYTES = 256 * 1024

router = APIRouter(prefix="/api/v1", tags=["alerting"])


@router.post("/pagerduty", responses=answers(PagerDutyAnswer))
async def pagerduty(request: Request, alerting: AlertingPart) -> Response:
    """Apply a signed webhook once: an acknowledgement or a resolution there acknowledges here."""
    taking = [
        sink.webhooks
        for sink in alerting.service.sinks
        if isinstance(sink, PagerDutySink) and sink.webhooks is not None
    ]
    if not taking:
        raise NotFound(
            "this server takes nothing from PagerDuty",
            hint="set STABILITY_PAGERDUTY_WEBHOOK_SECRET: README of the PagerDuty plug-in",
        )
    body = await request.body()
    signatures = request.headers.get("x-pagerduty-signature", "")
    signed = next((webhooks for webhooks in taking if webhooks.signed(signatures, body)), None)
    if signed is None:
        raise Unauthorized(
            "no signature of X-PagerDuty-Signature fits the body",
            hint="check STABILITY_PAGERDUTY_WEBHOOK_SECRET: it is the secret of the webhook subscription",
            code="bad_signature",
        )
    try:
        with redis_errors():
            return answer(await signed.take(body))
    except BadWebhook as error:
        raise BadRequest(str(error), hint="it takes PagerDuty's webhooks alone", status=400) from None
    except ActionRefused as error:
        raise Unavailable(str(error), hint="PagerDuty sends it again") from None
