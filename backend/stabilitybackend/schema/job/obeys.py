"""The event ``obeys``: which orders beside a rollback a rank carries out."""

from __future__ import annotations

import msgspec

__all__ = ["OrdersObeyed"]


class OrdersObeyed(msgspec.Struct):
    """``orders``: kinds of command, as docs/orders.md names them; those of a newer client among them."""

    orders: list[str]
