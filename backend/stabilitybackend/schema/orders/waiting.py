"""An order that came while nobody owned its run, as it is stored until an owner takes it."""

from __future__ import annotations

from typing import Any

import msgspec

from stabilitybackend.schema.commands import AnyCommand, Command, CommandRequest

__all__ = ["WaitingOrder"]


class WaitingOrder(msgspec.Struct, frozen=True):
    """What was asked, and the command as it would have been on what was stored then.

    Attributes:
        order: the JSON of the request. command: pending; its fence is what was true when it was ordered.
    """

    order: dict[str, Any]
    command: AnyCommand

    @property
    def request(self) -> CommandRequest:
        """What was asked; fields that this server does not know are left out."""
        return msgspec.convert(self.order, CommandRequest)

    @property
    def name(self) -> str:
        """What makes it one order however often it is given."""
        return self.command.idempotency_key or self.command.command_id

    def at(self, now: float) -> Command:
        """Return its command as people see it at this time: nobody begins with one that expired."""
        if now <= self.command.expires:
            return self.command
        ended: Command = msgspec.json.decode(msgspec.json.encode(self.command), type=AnyCommand)
        ended.note("expired", self.command.expires, "no worker followed the run until then, and nothing was sent")
        return ended
