"""A Slack app as a receiver: one thread an incident, with buttons. Prose: README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from fastapi import APIRouter

    from stabilityalerting import Sink


@hook
def channels() -> list[type[Sink]]:
    from stabilityplugins.slack.channel import SlackAppSink

    return [SlackAppSink]


@hook
def routes() -> list[APIRouter]:
    from stabilityplugins.slack.api import router

    return [router]


@hook
def signed_requests() -> dict[str, int]:
    from stabilityplugins.slack.api import MAX_SLACK_BYTES

    return {"/api/v1/slack": MAX_SLACK_BYTES}
