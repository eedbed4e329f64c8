"""How far a server's numbers are believed: never beyond what was written here, so that nothing unsent is removed.

A server can be wrong about what it has: a proxy repeats an old Welcome, a foreign frame has spoilt its count. A number
that can't be is named and left aside; where the server answers frames with such numbers too, the source is held back
and its spool stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from stabilityclient.agent.sources import Source
from stabilityclient.rank_state.slot import MAX_TIME_S
from stabilityclient.wire import Hello, Welcome

__all__ = ["begin_source", "begin_sources", "clock_offset_s", "confirmed"]


def begin_sources(sources: Iterable[Source], hello: Hello, welcome: Welcome) -> list[str]:
    """Go to where sending begins with each source; return what can't be about the numbers of a Welcome, in words."""
    troubles = [begin_source(source, welcome.last_seq.get(source.info.source, 0)) for source in sources]
    named = {info.source for info in hello.sources}
    foreign = sorted(set(welcome.last_seq) - named) if named else []  # a Hello without names gets the whole run's
    if foreign:
        troubles.append(
            f"the server has numbers of {len(foreign)} sources that were not asked for, e.g. {foreign[0]!r:.140}: "
            "left aside"
        )
    return troubles


def begin_source(source: Source, last_seq: int) -> str:
    """Go to where sending begins on a new connection.

    Args:
        last_seq: the last number that the server claims to have; 0 for none.

    Returns:
        What can't be about it, in words; empty when it is believed.
    """
    before, known = source.acked, max(0, last_seq)
    source.held, source.doubted, source.claimed = "", False, 0
    source.rewind(known + 1)
    written = _written(source)
    trouble = ""
    if last_seq < 0:
        trouble = f"{last_seq}, expected 0 or more"
    elif last_seq > written:
        source.doubted = True
        known, trouble = min(before, written), f"{last_seq}, and {written} were written"
    elif last_seq > source.high and not source.served_before:
        source.claimed = last_seq
        known, trouble = source.high, f"{last_seq}, and {source.high} were sent"
    if trouble:
        source.rewind(known + 1)
        trouble = (
            f"{source.info.source}: the server claims to have all up to {trouble}: not believed, "
            f"sending begins at {known + 1}"
        )
    source.high = max(source.high, known)
    source.served_before = False  # from here on nobody else sends of it
    return trouble


def confirmed(source: Source, last_seq: int) -> tuple[int | None, str]:
    """Return up to where an answer confirms what was sent, None for an answer that can't be; and what can't be."""
    if last_seq <= source.high:
        return last_seq, ""
    if last_seq <= source.claimed:
        return source.high, ""  # it has more than we sent, and so all that we did
    trouble = f"the server confirms {last_seq}, and {source.high} were sent"
    if source.doubted:
        source.rewind(source.acked + 1)
        source.held = trouble = (
            f"{trouble}: nothing of it is sent before the next connection, and what it holds here is kept"
        )
    return None, f"{source.info.source}: {trouble}"


def clock_offset_s(server_time: float, now: float) -> tuple[float, str]:
    """Return the server's time minus ours, seconds, and what can't be about it: then 0 is taken."""
    if abs(server_time) < MAX_TIME_S:
        return server_time - now, ""
    return 0.0, f"the server's time is {server_time} unix seconds: not believed, ours is taken"


def _written(source: Source) -> int:
    """Return the last number in the spool, or what its writer says: damage can hide some. Seek behind it before."""
    last = 0 if source.slot is None else source.slot.last_seq
    return max(source.reader.next_seq - 1, last)
