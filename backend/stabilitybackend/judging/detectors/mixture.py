"""Realised shares against declared ones: data sets outside the binomial band of their target."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar

from stabilitybackend.schema.metric_roles import NAMES_REMEMBERED, RATIO, TAKEN

from .engine.base import SENSITIVITY, Detector, Event, Finding, Mark, Parameter, Point, Row, State, fresh
from .stats.levels import LARGEST
from .stats.mixture_band import Bands, Spread, excess, limit
from .stats.mixture_blocks import BLOCK_ROWS, Block, Taken

#: Nats of an excess, besides the logarithm of the number of data sets: chance reaches it once in half a million looks;
#: each block is a look at some ten windows, so that is once in 400,000 rows.
NATS = math.log(5e5)
#: Two blocks outside are neither chance nor a hiccup: least rows of a window.
LEAST_ROWS = 2 * BLOCK_ROWS
#: An event ends when so many of the newest blocks together keep less than half of the deviation.
BACK_BLOCKS = 4
BACK_PART = 0.5
#: An onset so many blocks after a resume belongs to it.
NEAR_BLOCKS = 4
#: Data sets of one declaration.
MAX_DATASETS = 64
#: Apart from one set outside, those with this part of the way to the limit are candidates; the largest move is named.
CLEAR_PART = 0.5
#: Sets that moved the other way are named if their move is this part of the named one's.
EXCHANGED_PART = 0.25
#: Blocks of the displayed window with its band: 128 rows.
SHOWN_BLOCKS = 16

__all__ = ["MixtureDetector", "ShownShare"]


@dataclass(slots=True)
class _Off(Event):
    """An over- or underrepresented data set; ``metric`` is the set's."""

    dataset: str
    declared: float
    realised: float
    above: bool
    #: Counts since the onset, and rows at the report.
    since: Block
    reported_rows: int


@dataclass(slots=True)
class _DeclarationWatch:
    """One declaration: of tokens or of samples."""

    unit: str
    shares: dict[str, float]
    step: int
    taken: Taken = field(default_factory=Taken)
    measure: str = ""
    #: The incomplete row.
    row: dict[str, float] = field(default_factory=dict)
    row_step: int = -1
    off: _Off | None = None


@dataclass(frozen=True, slots=True)
class ShownShare:
    """A data set on the page; shares 0 to 1, ``low`` and ``high`` the band of the newest window."""

    dataset: str
    declared: float
    realised: float
    realised_since: float
    low: float
    high: float
    off: bool


class MixtureDetector(Detector):
    """Opens one incident when data sets are taken in other shares than the job declared (``run.mixture()``).

    Idea: rows are summed in blocks of 8. The newest 2, 4, 8 ... blocks since the declaration or the last resume,
    each window once in half of its length, are compared with the declared shares. Outside is a result that independent
    draws, as many as make the run's own blocks vary as they do, would give once in half a million looks. The
    incident names the set whose share moved most, declared and realised, since which step, how many tokens or
    samples too many or too few, in exchange for which sets, and the resume that it began at. A later declaration is a
    new target from its step on.

    Args:
        min_off: smallest deviation, as a fraction of the declared share or of the rest, whichever is smaller.

    Source: Chernoff's bound on the tail of the binomial; effective sample size by the design effect, Kish 1965.

    Example:
        >>> detector = MixtureDetector()
        >>> shares = {"web": 0.7, "code": 0.3}
        >>> found = detector.note(Mark("mixture", 0, 0.0, "declared", {"shares": shares, "unit": "tokens"}))
        >>> for step in range(200):
        ...     for name, tokens in (("code", 300 + step % 7), ("web", 700 - step % 7 - 300 * (step >= 160))):
        ...         found += detector.update(Point(step, f"mixture.tokens/{name}", tokens, 0.0))
        >>> [(f.onset_step, f.dataset, f.evidence["declared"]) for f in found][:1]
        [(160, 'code', 0.3)]
    """

    name: ClassVar[str] = "mixture"
    kinds: ClassVar[tuple[str, ...]] = ("data_mix_drift",)
    title: ClassVar[str] = "Data are not taken as declared"
    parameters: ClassVar[dict[str, Parameter]] = {
        "sensitivity": SENSITIVITY,
        "min_off": Parameter(
            0.05, 0.0, 1.0, "fraction", "Smallest deviation from the declared share that counts; higher is quieter."
        ),
    }

    _watches: dict[str, _DeclarationWatch] = fresh(dict)
    _newest: str = ""
    _fork: tuple[int, str] | None = None

    @classmethod
    def story(cls) -> Sequence[Row | Mark]:
        shares = {"web": 0.7, "code": 0.3}
        rows = []
        for step in range(600):
            code = 300 + 7 * step % 31 - 15 + (200 if 300 <= step < 400 else 0)
            rows.append(Row(step, 1e9 + step, {f"{TAKEN}tokens/code": code, f"{TAKEN}tokens/web": 1_000.0 - code}))
        return [Mark("mixture", 0, 1e9, "a mixture was declared", {"shares": shares, "unit": "tokens"}), *rows]

    def wants(self, metric: str) -> bool:
        return metric.startswith(TAKEN)

    def note(self, mark: Mark) -> list[Finding]:
        if mark.kind == "fork":
            self._fork = (mark.step, mark.text)
            for watch in self._watches.values():
                watch.row = {}
                if watch.off is None:
                    watch.taken.restart()
        elif mark.kind == "mixture":
            return self._declared(mark)
        return []

    def _declared(self, mark: Mark) -> list[Finding]:
        unit, shares = str(mark.data["unit"]), dict(list(mark.data["shares"].items())[:MAX_DATASETS])
        before, self._newest = self._watches.get(unit), unit
        watch = self._watches[unit] = _DeclarationWatch(unit, shares, mark.step)
        if before is None:
            return []
        watch.taken.spreads, watch.measure = before.taken.spreads, before.measure
        watch.taken.restart()
        return self._end(before, "resolved", mark.step, None) if before.off is not None else []

    def update(self, point: Point) -> list[Finding]:
        step, metric, value, _, _ = point
        measure, dataset = _parts(metric)
        found: list[Finding] = []
        for watch in self._watches.values():
            if not measure == watch.measure == watch.unit and not self._compares(watch, measure):
                continue
            if step != watch.row_step:
                found += self._row(watch)
                watch.row, watch.row_step = {}, step
            if len(watch.row) < MAX_DATASETS:
                watch.row[dataset] = value if 0 <= value < LARGEST else math.nan
        return found

    def _compares(self, watch: _DeclarationWatch, measure: str) -> bool:
        """Return whether a measure is the compared one, and begin anew for another one."""
        exact = watch.measure == watch.unit  # counts in the declared unit have priority over a bare share
        if measure != watch.unit and (measure != RATIO or watch.unit != self._newest or exact):
            return False
        if measure != watch.measure:
            watch.measure, watch.row, watch.taken = measure, {}, Taken()
        return True

    def _row(self, watch: _DeclarationWatch) -> list[Finding]:
        """Take the completed row."""
        row = watch.row
        total = sum(row.values())
        if watch.row_step < watch.step or not 0 < total < LARGEST or watch.shares.keys().isdisjoint(row):
            return []
        self.context.mixture = True
        if not watch.taken.row(watch.row_step, row, total) or not self.settings["sensitivity"]:
            return []
        return self._follow(watch, watch.off) if watch.off is not None else self._judge(watch)

    # --- one block ----------------------------------------------------------------------------------------------

    def _datasets(self, watch: _DeclarationWatch) -> dict[str, float]:
        """Return the declared share of each set, declared or taken."""
        return {**dict.fromkeys(watch.taken.spreads, 0.0), **watch.shares}

    def _most(self, watch: _DeclarationWatch, differences: int) -> float:
        return limit(NATS + math.log(max(2, len(watch.shares))), differences) / self.settings["sensitivity"] ** 2

    def _judge(self, watch: _DeclarationWatch) -> list[Finding]:
        windows = watch.taken.due()
        worst, clearest = 0, 1.0
        # Window -> data set -> distance from its declared share there, of those certainly off.
        moves: dict[int, dict[str, float]] = {}
        for name, declared in self._datasets(watch).items():
            least = self.settings["min_off"] * min(declared, 1 - declared)
            draws = most = -1.0
            for at in range(1, len(windows)):
                window = windows[at]
                share = window.of.get(name, 0.0) / window.total
                if abs(share - declared) <= least or window.rows < LEAST_ROWS:
                    continue
                if draws < 0:
                    draws, differences = watch.taken.spreads.get(name, Spread()).sample_size(declared)
                    if not differences:
                        break
                    most = self._most(watch, differences)
                beyond = excess(draws * window.rows / BLOCK_ROWS, share, declared) / most
                if beyond > CLEAR_PART:
                    moves.setdefault(at, {})[name] = share - declared
                    worst, clearest = (at, beyond) if beyond > clearest else (worst, clearest)
        if not worst:
            return []
        # Of two that changed places, within a percent, the overrepresented one.
        off = moves[worst]
        named = max(off, key=lambda one: (round(abs(off[one]), 2), off[one]))
        return self._open(watch, named, windows[worst].share(named), watch.row_step)

    def _open(self, watch: _DeclarationWatch, name: str, share: float, step: int) -> list[Finding]:
        declared = self._datasets(watch)[name]
        above = share > declared
        onset = watch.taken.onset(name, declared, share)
        since = watch.taken.since(onset)
        metric = f"{TAKEN}{watch.measure}/{name}"
        watch.off = _Off(metric, onset, step, "warning", name, declared, since.share(name), above, since, since.rows)
        self.claim(metric, onset)
        return [self._finding(watch, watch.off, "open", step, None)]

    def _follow(self, watch: _DeclarationWatch, off: _Off) -> list[Finding]:
        """Advance the open event by a block."""
        since, newest = off.since, watch.taken.newest(BACK_BLOCKS)
        since.join(watch.taken.blocks[-1])
        off.realised = since.share(off.dataset)
        left = (newest.share(off.dataset) - off.declared) * (1 if off.above else -1)
        if newest.first >= off.onset and left < BACK_PART * abs(off.realised - off.declared):
            return self._end(watch, "recovered", watch.row_step, newest.first)
        if since.rows < 2 * off.reported_rows:
            return []
        off.reported_rows = since.rows
        return [self._finding(watch, off, "open", watch.row_step, None)]

    def _end(self, watch: _DeclarationWatch, state: State, step: int, back: int | None) -> list[Finding]:
        off = watch.off
        if off is None:
            return []
        found = self._finding(watch, off, state, step, back)
        self.claim(off.metric, off.onset, step)
        watch.off = None
        watch.taken.restart()
        return [found]

    # --- text ----------------------------------------------------------------------------------------------------

    def _finding(self, watch: _DeclarationWatch, off: _Off, state: State, step: int, back: int | None) -> Finding:
        since, sets = off.since, []
        for name, declared in self._datasets(watch).items():
            missing = since.of.get(name, 0.0) - declared * since.total
            sets.append((abs(since.share(name) - declared), name, declared, since.share(name), missing))
        sets.sort(reverse=True)
        amount = next((missing for _, name, _, _, missing in sets if name == off.dataset), 0.0)
        counted = watch.measure != RATIO
        much = f"{abs(amount):,.0f} {watch.unit}" if counted else f"{abs(amount):,.1f} rows' worth of data"
        fork = self._fork
        near = fork is not None and 0 <= off.onset - fork[0] <= NEAR_BLOCKS * BLOCK_ROWS * self.context.interval
        because = f", when {fork[1]}" if near and fork is not None else ""
        least = EXCHANGED_PART * abs(off.realised - off.declared)
        shown = (_percent(off.declared), _percent(off.realised))
        exchanged = [
            f"{name} ({_percent(share)}, declared {_percent(target)})"
            for far, name, target, share, _ in sets
            if far >= least and (share < target) == off.above
        ]
        text = (
            f"{off.dataset} is declared to be {shown[0]} of the {watch.unit} and is {shown[1]} since "
            f"step {off.onset}{because}: {much} too {'many' if off.above else 'few'}"
        )
        text += f", in exchange for {' and '.join(exchanged)}. " if exchanged else ". "
        if state == "recovered":
            text += f"Since step {back} it is as declared again. "
        elif state == "resolved":
            text += f"From step {step} on another mixture is declared. "
        evidence: dict[str, Any] = {
            "unit": watch.unit,
            "measure": watch.measure,
            "declared": off.declared,
            "realised": round(off.realised, 6),
            "off": round(amount, 3),
            "since": off.onset,
            "after_fork": fork[0] if near and fork is not None else None,
            "sets": [
                {"dataset": name, "declared": declared, "realised": round(share, 6), "off": round(missing, 3)}
                for _, name, declared, share, missing in sets[:16]
            ],
        }
        return self.finding(
            off,
            step,
            state,
            dataset=off.dataset,
            recovered_step=back,
            title=f"{off.dataset} is {shown[1]} of the data instead of {shown[0]}, step {off.onset}",
            text=text.strip(),
            score=min(1e9, abs(off.realised - off.declared) / max(min(off.declared, 1 - off.declared), 1e-6)),
            evidence=evidence,
        )

    def shown(self) -> dict[str, tuple[str, int, list[ShownShare]]]:
        """Return unit -> (measure, first step, each data set) for the page."""
        return {unit: (watch.measure, watch.step, self._shares(watch)) for unit, watch in self._watches.items()}

    def bands(self, unit: str) -> Bands | None:
        """Return the bands of a unit, None without a declaration."""
        watch = self._watches.get(unit)
        if watch is None:
            return None
        squares = {name: [list(one) for one in spread.squares] for name, spread in watch.taken.spreads.items()}
        nats = NATS + math.log(max(2, len(watch.shares)))
        strictness = self.settings["sensitivity"] ** 2
        return Bands(squares, BLOCK_ROWS, nats, strictness, self.settings["min_off"])

    def _shares(self, watch: _DeclarationWatch) -> list[ShownShare]:
        taken = watch.taken
        if not taken.blocks:
            return [ShownShare(name, p, math.nan, math.nan, 0.0, 1.0, off=False) for name, p in watch.shares.items()]
        newest, whole = taken.newest(SHOWN_BLOCKS), taken.newest(len(taken.blocks))
        shown, bands = [], self.bands(watch.unit)
        for name, declared in self._datasets(watch).items():
            low, high = (bands and bands.of(name, declared, newest.rows)) or (0.0, 1.0)
            off = watch.off is not None and watch.off.dataset == name
            shown.append(ShownShare(name, declared, newest.share(name), whole.share(name), low, high, off))
        return shown


def _percent(share: float) -> str:
    return f"{math.floor(1000 * share + 0.5) / 10:.1f} %"  # 31.25 is 31.3, as on the pages


@lru_cache(maxsize=NAMES_REMEMBERED)
def _parts(metric: str) -> tuple[str, str]:
    """Return measure and data set of a metric."""
    measure, _, dataset = metric.removeprefix(TAKEN).partition("/")
    return measure, dataset
