"""What browsers get of a run is encoded when somebody wants it."""

from __future__ import annotations

from typing import Any

import orjson

from stabilitybackend.runs.feed.pubsub import MAX_RECENT_BYTES, Channel, Subscriber


class _Message:
    """Counts how often it was made."""

    def __init__(self, cursor: str) -> None:
        self.cursor, self.made = cursor, 0

    def __call__(self) -> dict[str, Any]:
        self.made += 1
        return {"type": "points", "cursor": self.cursor}


def test_a_message_is_not_made_before_a_browser_asks_for_what_it_missed_and_then_once() -> None:
    channel, messages = Channel(), [_Message("1-0"), _Message("2-0"), _Message("3-0")]
    for message in messages:
        channel.publish_later(message, message.cursor, 100)
    assert [message.made for message in messages] == [0, 0, 0]
    missed = [channel.since("1-0", "3-0") for _ in range(2)]
    assert missed == [[orjson.dumps({"type": "points", "cursor": cursor}) for cursor in ("2-0", "3-0")]] * 2
    assert [message.made for message in messages] == [0, 1, 1]


async def test_a_browser_that_is_there_gets_it_at_once_in_the_bytes_that_are_kept() -> None:
    channel, there, message = Channel(), [Subscriber(), Subscriber()], _Message("1-0")
    for one in there:
        channel.join(one)
    channel.publish_later(message, message.cursor, 100)
    got = [await one.get() for one in there]
    assert (got, message.made) == ([orjson.dumps({"type": "points", "cursor": "1-0"})] * 2, 1)
    assert channel.since("0-0", "1-0") == got[:1]


def test_what_waits_to_be_encoded_counts_towards_the_bytes_that_are_kept() -> None:
    channel, messages = Channel(), [_Message(f"{at}-0") for at in range(1, 4)]
    for message in messages:
        channel.publish_later(message, message.cursor, MAX_RECENT_BYTES // 2)
    assert channel.since("0-0", "3-0") is None
    assert len(channel.since("2-0", "3-0") or ()) == 1
