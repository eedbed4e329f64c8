"""The events ``start`` and ``obeys``: which orders beside a rollback a rank carries out."""

from __future__ import annotations

import msgspec

__all__ = ["OrdersObeyed", "ProcessStart"]


class OrdersObeyed(msgspec.Struct):
    """What a rank said.

    Attributes:
        orders: kinds of command, as docs/orders.md names them; those of a newer client among them.
        why: kind -> why it does not obey that one, half a sentence; where it knows better than "no function".
    """

    orders: list[str]
    why: dict[str, str] = {}


class ProcessStart(msgspec.Struct):
    """``start``. says_orders: its client says which orders it obeys, so that one who says nothing obeys none."""

    says_orders: bool = False
