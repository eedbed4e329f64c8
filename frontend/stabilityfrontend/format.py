"""Numbers and times in readable form, for the server's pages. ``assets/core/format.js`` formats them the same way."""

from __future__ import annotations

from collections.abc import Iterable

from dash import html

__all__ = ["count", "duration", "moment", "names", "number", "percent", "plural", "ranks", "sentence"]

_MISSING = "–"


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    return _MISSING if value is None else f"{round(value):,}"


def plural(value: int, word: str) -> str:
    """Return ``1 step``, ``63 steps``."""
    return f"{count(value)} {word}{'' if value == 1 else 's'}"


def number(value: float | None) -> str:
    """Return a value with about four digits."""
    return _MISSING if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in whole per cent."""
    return _MISSING if share is None else "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def duration(seconds: float | None) -> str:
    """Return seconds as a duration with two units at most."""
    if seconds is None:
        return _MISSING
    s = max(0.0, seconds)
    for below, words in (
        (1, f"{1000 * s:.0f} ms"),
        (10, f"{s:.1f} s"),
        (60, f"{s:.0f} s"),
        (3600, f"{s // 60:.0f} min {s % 60 // 1:02.0f} s"),
        (86400, f"{s // 3600:.0f} h {s % 3600 // 60:02.0f} min"),
    ):
        if s < below:
            return words
    return f"{s // 86400:.0f} d {s % 86400 // 3600:.0f} h"


def moment(time: float | None) -> html.Time | str:
    """Return a place where the browser writes a date and time, unix seconds, in the viewer's own time zone."""
    return _MISSING if time is None else html.Time(**{"data-unix": time})


def sentence(text: str) -> str:
    """Return a text of the API as a sentence."""
    words = text.strip()
    return f"{words[:1].upper()}{words[1:]}{'' if words[-1:] in '.!?…' else '.'}" if words else ""


def names(given: Iterable[str], most: int = 4) -> str:
    """Return the first of some names, and how many more there are."""
    known = list(given)
    return ", ".join(known[:most]) + (f" and {count(len(known) - most)} more" if len(known) > most else "")


def ranks(given: Iterable[int], most: int = 3) -> str:
    """Return ranks in words: ``rank 5``, ``ranks 0–4, 6 and 12 more``."""
    known = sorted(set(given))
    stretches: list[list[int]] = []
    for rank in known:
        if stretches and rank == stretches[-1][-1] + 1:
            stretches[-1].append(rank)
        else:
            stretches.append([rank])
    words = [str(one[0]) if len(one) == 1 else f"{one[0]}{'–' if len(one) > 2 else ', '}{one[-1]}" for one in stretches]
    more = sum(len(one) for one in stretches[most:])
    named = ", ".join(words[:most]) + (f" and {count(more)} more" if more else "")
    return f"{'rank' if len(known) == 1 else 'ranks'} {named}" if known else ""
