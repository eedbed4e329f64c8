"""Asks PagerDuty's REST API which alerts an incident has: several may be in one, by grouping or by merging."""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import quote

import httpx

from stabilityalerting.sink import redact

PAGERDUTY_API_URL = "https://api.pagerduty.com"
#: PagerDuty waits 5 s for the answer to its webhook: this has to be over by then.
LOOK_UP_S = 2.5
#: Alerts of an incident that are looked at: the most that PagerDuty gives in one answer.
MAX_ALERTS = 100

__all__ = ["PAGERDUTY_API_URL", "IncidentAlerts"]

_log = logging.getLogger(__name__)


class IncidentAlerts:
    """Looks up the dedup_keys of an incident's alerts.

    Args:
        token: of the REST API, a secret; it only needs to read.

    Source: https://developer.pagerduty.com/api-reference (List alerts for an incident)
    """

    def __init__(self, token: str, url: str = PAGERDUTY_API_URL) -> None:
        #: The token: it must never show up in a message of ours.
        self.secret = token
        self._url = url.rstrip("/")
        self._client: httpx.AsyncClient | None = None

    async def keys(self, incident: str) -> list[str]:
        """Return the dedup_keys of an incident of PagerDuty; none where it could not be asked, which is logged."""
        if self._client is None:
            self._client = httpx.AsyncClient(timeout=LOOK_UP_S, follow_redirects=False)
        headers = {
            "Authorization": f"Token token={self.secret}",
            "Accept": "application/vnd.pagerduty+json;version=2",
        }
        url = f"{self._url}/incidents/{quote(incident, safe='')}/alerts"
        try:
            answer = await self._client.get(url, params={"limit": MAX_ALERTS}, headers=headers)
            answer.raise_for_status()
            found: Any = answer.json()["alerts"]
            return [str(one["alert_key"]) for one in found if one.get("alert_key")]
        except (httpx.HTTPError, OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            why = redact(f"{type(error).__name__}: {error}", [self.secret])
            _log.warning("pagerduty: the alerts of an incident can't be looked up: %s", why)
            return []

    async def aclose(self) -> None:
        """Close its connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None
