"""The way out of a node: each message of an agent or an import passes here, and leaves without secrets.

Never imported by the training process.
"""

from __future__ import annotations

from typing import TypeVar

from stabilityclient.secrets.texts import clean_text
from stabilityclient.secrets.values import clean_config, clean_event, clean_name
from stabilityclient.wire import EventBlock, Frame, Health, Hello, Output, PointsBlock

__all__ = ["cleaned"]

T = TypeVar("T", Hello, Frame, Health, Output)


def cleaned(message: T) -> T:
    """Return a message without secrets: the same object, in which each free text was replaced."""
    if isinstance(message, Frame):
        for block in message.blocks:
            if isinstance(block, EventBlock):
                block.data = clean_event(block.data)
            else:
                _clean_points(block)
    elif isinstance(message, Hello):
        message.name = clean_text(message.name, ids=True)
        message.config, message.notes = clean_config(message.config), clean_text(message.notes, digests=True)
        message.tags = [clean_text(tag, digests=True) for tag in message.tags]
    elif isinstance(message, Health):
        message.ranks = [clean_event(rank) for rank in message.ranks]
        message.agent_state = clean_event(message.agent_state)
    else:
        for line in message.lines:
            line.text = clean_text(line.text, digests=True)
    return message


def _clean_points(block: PointsBlock) -> None:
    every = "\n".join(block.names)  # of 20,000 names nearly never one is an address: they are looked at together
    if "://" in every or "=" in every:
        block.names = _clean_names(block.names)


def _clean_names(names: list[str]) -> list[str]:
    """Return the names of a set; where two would become one they stay two."""
    kept: dict[str, None] = {}
    for name in names:
        clean = clean_name(name)
        place = 2
        while clean in kept:
            clean, place = f"{clean_name(name)} ({place})", place + 1
        kept[clean] = None
    return list(kept)
