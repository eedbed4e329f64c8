"""What a job can do of the orders to stop and to save a checkpoint, as pages and programs get it before they order."""

from __future__ import annotations

from msgspec import Struct

from stabilitybackend.schema.orders.kinds import Kind

__all__ = ["OrderOffer", "OrderOffers"]


class OrderOffer(Struct, frozen=True):
    """Whether one order would be taken now.

    Attributes:
        why: it would not, half a sentence; "" where it would.
        works: what reaches this job instead.
    """

    possible: bool
    why: str
    works: list[Kind]


class OrderOffers(Struct, frozen=True):
    """What can be ordered of a job now.

    Attributes:
        ranks: that all do it at one step boundary, or none.
        last_checkpoint: step of the newest one that can be used, null for none.
        steps_lost: that a stop loses which does not save first; null before the first step. seconds_lost: the same.
    """

    stop: OrderOffer
    checkpoint_now: OrderOffer
    ranks: int
    last_checkpoint: int | None
    steps_lost: int | None
    seconds_lost: float | None
