"""Who gets which alert: routes by matchers, mutes for a while, and whom it goes on to if nobody acknowledges."""

from .rules import Mute, Rules, labels_of
from .table import LABELS, Decision, Escalation, Route, RoutingTable, wrong_labels

__all__ = [
    "LABELS", "Decision", "Escalation", "Mute", "Route", "RoutingTable", "Rules", "labels_of", "wrong_labels",
]  # fmt: skip
