"""PagerDuty both ways: pages and changes go out, acknowledgements come back. Prose: README.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stabilitybackend.hooks import hook

if TYPE_CHECKING:
    from fastapi import APIRouter

    from stabilityalerting import Sink


@hook
def channels() -> list[type[Sink]]:
    from stabilityplugins.pagerduty.channel import PagerDutySink

    return [PagerDutySink]


@hook
def routes() -> list[APIRouter]:
    from stabilityplugins.pagerduty.api import router

    return [router]


@hook
def signed_requests() -> dict[str, int]:
    from stabilityplugins.pagerduty.api import MAX_PAGERDUTY_BYTES

    return {"/api/v1/pagerduty": MAX_PAGERDUTY_BYTES}
