"""What holds now: the table of routes, and the mutes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from stabilityalerting.alert import Alert

from .table import Patterns, RoutingTable, fits

__all__ = ["Mute", "Rules", "labels_of"]


class Mute(msgspec.Struct, frozen=True):
    """Alerts that nobody gets for a while: a maintenance window, or a run that somebody is looking after.

    Args:
        mute_id: of this mute. match: label -> patterns, as in a route.
        owner: who set it. reason: why.
        starts, ends: unix seconds. Incidents that are still open at the end are sent then.
    """

    mute_id: str
    match: dict[str, Patterns]
    owner: str
    reason: str
    starts: float
    ends: float

    def covers(self, labels: Mapping[str, str], now: float) -> bool:
        """Return whether an alert is muted now."""
        return self.starts <= now < self.ends and fits(self.match, labels)


@dataclass(frozen=True, slots=True)
class Rules:
    """What holds now.

    Args:
        table: None where nobody wrote one: each receiver gets everything.
    """

    table: RoutingTable | None = None
    mutes: tuple[Mute, ...] = ()

    def muted(self, alert: Alert, now: float) -> Mute | None:
        """Return the mute that covers an alert, of several the one that ends last."""
        labels = labels_of(alert)
        covering = [mute for mute in self.mutes if mute.covers(labels, now)]
        return max(covering, key=lambda mute: mute.ends, default=None)


def labels_of(alert: Alert) -> dict[str, str]:
    """Return what routes and mutes match an alert by; only what it has."""
    found = {
        "run": alert.run_id,
        "project": alert.project,
        "kind": alert.kind,
        "severity": alert.severity,
        "about": alert.about,
        "node": alert.node,
        "rank": alert.rank,
        "dataset": alert.dataset,
        "metric": alert.metric,
    }
    return {label: str(value) for label, value in found.items() if value not in (None, "")}
