"""Whether a run fits a filter: terms become functions once, then each run is asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import ge, gt, le, lt
from typing import Any, get_args

from stabilitybackend.run_table.columns import Column, column_of
from stabilitybackend.run_table.grammar import Term, duration, number, parse, refusal
from stabilitybackend.run_table.rows import TableRun
from stabilitybackend.schema.runs import STATUSES
from stabilitybackend.schema.severity import PHASE_APPEARANCES, RunCondition

__all__ = ["Filter"]

#: Values of ``state:`` besides conditions, phases and statuses.
SEVERITIES = ("critical", "warning")
_COMPARE: dict[str, Callable[[float, float], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_Fits = Callable[[TableRun, float], bool]


class Filter:
    """A filter, ready to be asked.

    Args:
        text: see ``grammar``. Raises BadRequest, ``bad_filter``, where it is none.

    Attributes:
        keys: that it names and that no built-in column has.
    """

    def __init__(self, text: str) -> None:
        terms = parse(text)
        self._fits = [_compiled(term, text) for term in terms]
        columns = [column_of(term.key) for term in terms if term.key]
        self.keys = list(dict.fromkeys(one.key for one in columns if one.kind == "any" or "." in one.key))

    def of(self, rows: Iterable[TableRun], now: float) -> list[TableRun]:
        """Return the runs that fit, at ``now``, unix seconds."""
        found = list(rows)
        for fits in self._fits:
            found = [row for row in found if fits(row, now)]
        return found


def _compiled(term: Term, text: str) -> _Fits:
    fits = _word(term) if not term.key else _state(term, text) if term.key == "state" else _key(term, text)
    if term.wrong != (term.operator == "!="):
        return lambda row, now: not fits(row, now)
    return fits


def _word(term: Term) -> _Fits:
    word = term.values[0].lower()
    return lambda row, now: word in row.text


def _state(term: Term, text: str) -> _Fits:
    possible = tuple(dict.fromkeys((*get_args(RunCondition), *SEVERITIES, *PHASE_APPEARANCES, *STATUSES)))
    if term.operator not in (":", "!="):
        raise refusal(text, term.at, "a state is no number", "write state: and one of " + ", ".join(possible))
    wanted = {value.lower() for value in term.values}
    unknown = sorted(wanted.difference(possible))
    if unknown:
        raise refusal(text, term.at, f"there is no state {unknown[0][:60]!r}", "possible: " + ", ".join(possible))

    def fits(row: TableRun, now: float) -> bool:
        state, worst = row.run.state, row.run.worst_incident
        states = {state.condition, row.run.status, state.phase, worst.severity if worst else ""}
        return not wanted.isdisjoint(states)

    return fits


def _key(term: Term, text: str) -> _Fits:
    column = column_of(term.key)
    if term.operator in _COMPARE:
        return _comparison(term, column, text)
    one_of = [_equal(value, column, term, text) for value in term.values]
    of = column.value

    def fits(row: TableRun, now: float) -> bool:
        value = of(row, now)
        return any(equal(value) for equal in one_of)

    return fits


def _comparison(term: Term, column: Column, text: str) -> _Fits:
    given = term.values[0]
    if column.kind == "age":
        limit, possible = duration(given), f"write a time, e.g. {term.key}{term.operator}2h (s, min, h, d, w)"
    else:
        limit, possible = number(given), f"write a number, e.g. {term.key}{term.operator}3e-4 (also 10k, 1.5B, 90%)"
    if column.kind in ("text", "tags"):
        raise refusal(text, term.at, f"{term.key} is text, not a number", f"write {term.key}:{given}")
    if limit is None:
        raise refusal(text, term.at, f"{given[:60]!r} is no {'time' if column.kind == 'age' else 'number'}", possible)
    compare, of, than = _COMPARE[term.operator], column.value, limit

    def fits(row: TableRun, now: float) -> bool:
        value = of(row, now)
        return isinstance(value, int | float) and not isinstance(value, bool) and compare(value, than)

    return fits


def _equal(value: str, column: Column, term: Term, text: str) -> Callable[[Any], bool]:
    """Return whether a run's value is this one."""
    lower = value.lower()
    if lower == "none" and not term.quoted:
        return lambda found: found is None or found == [] or found == ""
    if value == "*" and not term.quoted:
        return lambda found: found is not None and found != [] and found != ""
    wanted = duration(value) if column.kind == "age" else number(value)
    if wanted is None and column.kind in ("count", "number", "share", "age"):
        raise refusal(
            text, term.at, f"{value[:60]!r} is no number", f"write {term.key}:1000, {term.key}>1000 or {term.key}:none"
        )
    like = _like(value, column.inside, term.quoted)

    def equal(found: Any) -> bool:
        if isinstance(found, bool):
            return lower == ("true" if found else "false")
        if isinstance(found, int | float):
            return wanted is not None and _same(float(found), wanted)
        if isinstance(found, str):
            return like(found)
        return isinstance(found, Sequence) and any(like(str(one)) for one in found)

    return equal


def _same(found: float, wanted: float) -> bool:
    if math.isnan(wanted):
        return math.isnan(found)
    return found == wanted or math.isclose(found, wanted, rel_tol=1e-9)


def _like(value: str, inside: bool, quoted: bool) -> Callable[[str], bool]:
    lower = value.lower()
    if "*" in lower and not quoted:
        # Each piece is looked for behind the one before: as a regular expression it could take for ever.
        first, *middle, last = lower.split("*")
        return lambda found: _pieces(found.lower(), first, middle, last)
    if inside:
        return lambda found: lower in found.lower()
    return lambda found: found.lower() == lower


def _pieces(found: str, first: str, middle: Sequence[str], last: str) -> bool:
    if not found.startswith(first) or not found.endswith(last) or len(found) < len(first) + len(last):
        return False
    at, end = len(first), len(found) - len(last)
    for piece in middle:
        place = found.find(piece, at, end)
        if place < 0:
            return False
        at = place + len(piece)
    return True
