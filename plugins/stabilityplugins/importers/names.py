"""Names of a foreign file's metrics: kept, but for requested or obvious renames.

Our detectors and pages look at ``loss``, ``grad_norm`` and ``lr``. Where a file has no metric of such a name, the first
usual other spelling takes its place, and that is reported. The spellings are those of live runs
(``detectors/engine/metric_roles.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping

from stabilitybackend.base.errors import BadRequest
from stabilitybackend.schema.metric_roles import OTHERS
from stabilityclient.wire import MAX_NAME_CHARS

__all__ = ["Names", "parse_renames", "usual_names"]


class Names:
    """Renames metrics.

    Args:
        renames: name in the file -> name here.
    """

    def __init__(self, renames: Mapping[str, str] | None = None) -> None:
        self.renames = dict(renames or {})
        #: Names in the file that were given another one.
        self.used: set[str] = set()
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        #: Short hash: rows that were stored under other names are not the same rows.
        self.mark = hashlib.sha256(repr(sorted(self.renames.items())).encode()).hexdigest()[:4]

    def of(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of one row here; a name that the row has already is not given twice."""
        if not self.renames:
            return names
        found = self._known.get(names)
        if found is None:
            if len(self._known) > 10_000:
                self._known.clear()
            taken = set(names)
            self.used.update(name for name in names if self.renames.get(name, name) not in taken)
            found = self._known[names] = tuple(
                self.renames[name] if name in self.renames and self.renames[name] not in taken else name
                for name in names
            )
        return found


def usual_names(seen: Collection[str]) -> dict[str, str]:
    """Return which of the names ``seen`` in a file take the place of loss, grad_norm and lr."""
    renames: dict[str, str] = {}
    for ours, theirs in OTHERS.items():
        if ours not in seen:
            found = next((name for name in theirs if name in seen), None)
            if found is not None:
                renames[found] = ours
    return renames


def parse_renames(given: Collection[str]) -> dict[str, str]:
    """Return ``OLD=NEW`` texts as a mapping.

    Raises:
        BadRequest: a text is not of that form, or two of them give the same new name.
    """
    renames: dict[str, str] = {}
    for text in given:
        old, equals, new = text.rpartition("=")
        if not equals or not old or not new:
            raise BadRequest(f"--rename is {text!r}, expected OLD=NEW, for example train/loss=loss")
        if len(new) > MAX_NAME_CHARS:
            raise BadRequest(f"--rename gives a name of {len(new)} characters, expected 1 to {MAX_NAME_CHARS}")
        renames[old] = new
    if len(set(renames.values())) < len(renames):
        raise BadRequest("--rename gives one new name twice, expected each once")
    return renames
