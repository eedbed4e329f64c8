"""Roles of the metrics of one run, and their evidence, for live runs and past logs.

A role comes from the table of names (``metric_roles.py``), from a declaration (``run.names()``), or from a likely name
with confirming values. Detectors see the table's names only: other metrics are renamed for them (``judged``), and
findings get their own names back (``own_name``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stabilitybackend.base.name_sets import NameKey, key_of
from stabilitybackend.base.stateful import Stateful, fresh
from stabilitybackend.judging.detection.naming.families import COUNTS, GROWING, SHARES, Family, counts_of, shares_of
from stabilitybackend.judging.detection.noise import is_noisy
from stabilitybackend.judging.detectors.stats.robust import MEDIAN_ERROR, robust_sigma
from stabilitybackend.schema.metric_roles import (
    GRAD_NORM,
    LOSS,
    LR,
    RATIO,
    ROLES,
    SAMPLES,
    TAKEN,
    TOKENS,
    best_of,
    has_parts,
    likely_role_of,
    loss_rank,
    mixture_of,
    role_of,
)

__all__ = ["WatchedNames"]

# Roles of unlisted names by their values: loss, learning rate, gradient norm. The clearer a name, the fewer values are
# needed. A loss with a neutral name shows the traits of all losses: another number at each row, noise of batches on a
# level that falls or stays, and no similar metric.

#: Ranks of names: listed or declared ones, and neutral ones (``loss_rank``).
KNOWN, UNNAMED = -1, 2
#: Finite values before a decision: of a likely name, of a neutral one.
DECIDED_POINTS = 16
UNNAMED_POINTS = 64
#: Candidates of one role and rank.
MAX_CANDIDATES = 32
#: Largest learning rate: Adafactor's relative step is 0.01, SGD's with a large batch has been some tens.
LARGEST_LR = 100.0
#: Half of the changes of a learning rate from one point to the next are smaller than this, as a fraction.
SMOOTH_CHANGE = 0.2
#: Intervals tried of a metric with a neutral name.
MAX_TRIES = 8
#: Fall of a learning loss, fraction; of two errors it is also more.
FALLS = 0.05
#: Rank correlation of changes of one quantity: a loss, its perplexity, its bits.
SAME = 0.9


@dataclass(slots=True)
class _Candidate:
    role: str
    rank: int
    values: list[float] = field(default_factory=list)
    tries: int = 1

    @property
    def decided(self) -> bool:
        return len(self.values) >= (UNNAMED_POINTS if self.rank == UNNAMED else DECIDED_POINTS)

    def take(self, column: NDArray[np.float64]) -> None:
        """Take values of some rows; an interval unlike a loss is dropped for the next one, for some tries."""
        came = column[np.isfinite(column)][: MAX_TRIES * UNNAMED_POINTS].tolist()
        for value in came:
            if self.decided:
                if self.rank < UNNAMED or self.tries >= MAX_TRIES or _confirmed(self):
                    return
                self.values, self.tries = [], self.tries + 1
            self.values.append(value)


class Candidates(Stateful):
    """Candidates of a run's loss, learning rate or gradient norm, for roles without a listed name."""

    _of: dict[str, _Candidate] = fresh(dict)
    #: Whether the run has a reward or parts of a loss: then values can't identify a loss.
    _in_parts: bool = False
    #: Full (role, rank): thousands of names arrive together. Not part of the state.
    _full = frozenset[tuple[str, int]]()

    def restored(self) -> None:
        self._full = frozenset()

    def add(self, metric: str) -> None:
        """Add a metric that may have a role."""
        self._in_parts = self._in_parts or has_parts(metric)
        rank = loss_rank(metric)
        role, rank = (likely_role_of(metric), 0) if rank is None else (LOSS, rank)
        if role is None or (role, rank) in self._full:
            return
        if sum(one.role == role and one.rank == rank for one in self._of.values()) < MAX_CANDIDATES:
            self._of.setdefault(metric, _Candidate(role, rank))
        else:
            self._full |= {(role, rank)}

    def remove(self, metric: str) -> None:
        """Remove a metric with a declared role."""
        self._of.pop(metric, None)
        self._full = frozenset()

    def role(self, metric: str) -> str:
        """Return the possible role of a candidate."""
        return self._of[metric].role

    def rank(self, metric: str) -> int:
        """Return the rank of a candidate's name, KNOWN for others."""
        return self._of[metric].rank if metric in self._of else KNOWN

    def undecided(self, names: Collection[str], chosen: Mapping[str, str]) -> bool:
        """Return whether more values may still decide on some of these metrics."""
        return any(metric in names and self._is_open(one, chosen) for metric, one in self._of.items())

    def _is_open(self, candidate: _Candidate, chosen: Mapping[str, str]) -> bool:
        """Return whether a candidate may still get its role: free, or held by a less clear name."""
        holder = chosen.get(candidate.role)
        more = not candidate.decided or (candidate.rank == UNNAMED and candidate.tries < MAX_TRIES)
        return more and (holder is None or candidate.rank < self.rank(holder))

    def observe(self, places: Mapping[str, int], values: NDArray[np.float64], chosen: Mapping[str, str]) -> list[str]:
        """Take rows, float64 (m, n); return the newly confirmed metrics, at most one a role."""
        news = set[str]()
        for metric, candidate in self._of.items():
            if metric in places and self._is_open(candidate, chosen):
                candidate.take(values[places[metric]])
                news |= {candidate.role} if candidate.decided else set()
        found = {role: one for role in (LOSS, GRAD_NORM, LR) if role in news and (one := self._one(role)) is not None}
        return [metric for role, metric in found.items() if metric != chosen.get(role)]

    def _one(self, role: str) -> str | None:
        """Return the metric of a role; of learning rates the first group's, of others only a single one."""
        for rank in sorted({one.rank for one in self._of.values() if one.role == role}):
            if rank == UNNAMED and self._in_parts:
                return None
            those = {name: one for name, one in self._of.items() if (one.role, one.rank) == (role, rank)}
            good = [name for name, one in those.items() if one.decided and _confirmed(one)]
            if role == LR:
                return min(good, default=None)
            if rank:
                found = _the_loss({name: those[name].values for name in good})
            else:
                found = good[0] if len(good) == 1 == len(those) else None
            if good or any(not one.decided and len(one.values) > UNNAMED_POINTS // 2 for one in those.values()):
                return found
        return None

    def several(self, role: str) -> list[str]:
        """Return the equal candidates of a role, with the clearest names."""
        named = {name: one.rank for name, one in self._of.items() if one.role == role and one.rank < UNNAMED}
        return sorted(name for name, rank in named.items() if rank == min(named.values()))


def _confirmed(candidate: _Candidate) -> bool:
    """Return whether the values of a candidate fit its role."""
    values = np.array(candidate.values)
    if candidate.role == LOSS and candidate.rank:
        return _is_like_a_loss(values) if candidate.rank == UNNAMED else len(set(candidate.values)) > 1
    if candidate.role != LR:
        return bool(values.min() >= 0 and values.max() > 0)
    near = np.abs(np.diff(values)) <= SMOOTH_CHANGE * np.abs(values[1:])
    return bool(values.min() >= 0 and values.max() < LARGEST_LR and near.sum() >= len(values) // 2)


def _is_like_a_loss(values: NDArray[np.float64]) -> bool:
    """Return whether values have the noise of batches on a level that falls or stays."""
    part = bool(values.min() > 0 and (values != np.round(values)).any())
    return part and is_noisy(values) and _fall(values) >= -2.0


def _fall(values: NDArray[np.float64]) -> float:
    """Return the fall of the level from the first third to the last, in its standard errors."""
    first, last = np.array_split(values, 3)[::2]
    sigma = robust_sigma(np.diff(values).tolist()) / np.sqrt(2.0)
    error = max(MEDIAN_ERROR * sigma * np.sqrt(2.0 / len(first)), 1e-300)
    return float((np.median(first) - np.median(last)) / error)


def _the_loss(columns: Mapping[str, list[float]]) -> str | None:
    """Return the only metric like a loss, of several the only one that learns; None for many.

    The same quantity in other units is one metric, the first of them.
    """
    learn = {}
    for name, values in columns.items():
        first, last = (float(np.median(part)) for part in np.array_split(np.array(values), 3)[::2])
        if first - last > FALLS * abs(first) and _fall(np.array(values)) > 2.0:
            learn[name] = values
    names = list(learn or columns)
    if not names:
        return None
    return names[0] if all(_same(columns[names[0]], columns[name]) for name in names[1:]) else None


def _same(one: list[float], other: list[float]) -> bool:
    """Return whether two metrics have the same changes in each row."""
    if len(one) != len(other):
        return False
    first, second = (np.argsort(np.argsort(np.diff(values))) for values in (one, other))
    return bool(np.corrcoef(first, second)[0, 1] >= SAME)


#: Roles with one judged metric a run: a second spelling is the same curve.
ONE_METRIC = (LOSS, GRAD_NORM, LR)
#: Roles declared per data set.
DATASET_ROLES = (LOSS, RATIO, TOKENS, SAMPLES)
#: Metrics with a remembered first step, and families: beyond are layers and experts.
MAX_NAMES = 20_000
MAX_FAMILIES = 64
MAX_MEMBERS = 64
#: Sets of metrics with a remembered plan.
MAX_SETS = 256
#: Rows before a missing declared name is reported: some evaluate and log every 50th step.
MISSING_ROWS = 100
#: The product's own family: a ratio by its name alone.
_OURS = "ratio/*"


class JudgedRows(NamedTuple):
    """Rows under the detectors' names.

    Args:
        names: of the metrics. columns: the values of each, for every row: float64 (m, n), or a list of columns.
    """

    names: tuple[str, ...]
    columns: NDArray[np.float64] | list[NDArray[np.float64]]


class _NamedSet(NamedTuple):
    family: str
    places: list[int]
    metrics: list[str]
    datasets: list[str]


class _Plan(NamedTuple):
    plain: list[tuple[int, str]]
    places: list[int]
    names: tuple[str, ...]
    groups: list[_NamedSet]
    as_logged: bool


class WatchedNames(Stateful):
    """Roles of the metrics of one run's primary rank.

    Attributes:
        declared, datasets: by the job: role -> metric, and role -> data set -> metric.
        chosen: role of ``ONE_METRIC`` -> its metric.
        families: shares and counts of data sets, also undecided and rejected ones.
        mixture: declared by the job: the counts of each row go to the detectors then.
    """

    declared: dict[str, str] = fresh(dict)
    datasets: dict[str, dict[str, str]] = fresh(dict)
    chosen: dict[str, str] = fresh(dict)
    families: dict[str, Family] = fresh(dict)
    candidates: Candidates = fresh(Candidates)
    mixture: bool = False
    #: Metric -> its first step.
    first_steps: dict[str, int] = fresh(dict)
    #: Rows since the newest declaration.
    rows_since: int = 0
    _ratios: str = ""

    def __init__(self) -> None:
        super().__init__()
        self._plans: dict[tuple[str, ...], _Plan] = {}
        #: Sets of metrics that are decided completely.
        self._settled: set[tuple[str, ...]] = set()

    def restored(self) -> None:
        self._forget_plans()

    def _forget_plans(self) -> None:
        self._plans, self._settled = {}, set()

    # --- declared and logged names -------------------------------------------------------------------------------

    def declare(self, roles: Mapping[str, str], datasets: Mapping[str, Mapping[str, str]]) -> int | None:
        """Take a declaration: it replaces earlier ones of the same role.

        Returns:
            The first step with a changed meaning, None for no change.
        """
        before = (dict(self.declared), {role: dict(sets) for role, sets in self.datasets.items()})
        self.declared.update({role: metric for role, metric in roles.items() if role in ROLES})
        self.datasets.update({role: dict(sets) for role, sets in datasets.items() if role in DATASET_ROLES})
        if (self.declared, self.datasets) == before:
            return None
        self.rows_since = 0
        self._forget_plans()
        known = list(self.first_steps)
        steps = [step for step in (self._new_name(name, self.first_steps[name]) for name in known) if step is not None]
        return min(steps, default=None)

    def declare_mixture(self) -> None:
        """Take a declaration of a mixture."""
        if not self.mixture:
            self.mixture = True
            self._forget_plans()

    def rewound(self) -> None:
        """Forget the newest counts: the next rows do not continue them."""
        for family in self.families.values():
            if family.are == GROWING:
                family.last = {}

    def is_settled(self, names: Sequence[str]) -> bool:
        """Return whether ``observe`` would find nothing in rows of these metrics."""
        return key_of(names) in self._settled

    def observe(self, names: Sequence[str], steps: NDArray[np.int64], values: NDArray[np.float64]) -> int | None:
        """Take rows of the primary rank before they are judged.

        Args:
            steps: int64 (n,). values: float64 (m, n).

        Returns:
            The first step with a changed meaning, None for no change.
        """
        self.rows_since += len(steps)
        row = key_of(names)
        if row in self._settled:
            return None
        changed: list[int] = []
        first = int(steps[0])
        fresh_names = [name for name in names if name not in self.first_steps]
        if fresh_names and len(self.first_steps) < MAX_NAMES:
            self.first_steps.update(dict.fromkeys(fresh_names, first))
            for role in ONE_METRIC:
                best, holder = best_of(role, fresh_names), self.chosen.get(role)
                if best is not None and holder is not None and self.candidates.rank(holder) > 0:
                    changed.append(self.first_steps[holder])  # decided by its values alone
                    del self.chosen[role]
                if best is not None:
                    self.chosen.setdefault(role, best)
            changed += [step for name in fresh_names if (step := self._new_name(name, first)) is not None]
            self._forget_plans()
        places = {name: place for place, name in enumerate(names)}
        for metric in self.candidates.observe(places, values, self.chosen):
            role = self.candidates.role(metric)
            changed += [self.first_steps[one] for one in (metric, self.chosen.get(role, metric))]
            self.chosen[role] = metric
        for key, family in self.families.items():
            if family.are or not self._undecided(family, places):
                continue
            own = [name for name in family.members if name in places]
            if family.observe(own, values[[places[name] for name in own]]) and family.is_mixture:
                changed.append(family.first_step)
                for name in family.members:
                    self.candidates.remove(name)
                if not self._ratios and key != _OURS and _OURS not in self.families:
                    self._ratios = key
        if changed:
            self._forget_plans()
        elif not self.candidates.undecided(places, self.chosen) and not any(
            sum(name in places for name in family.members) > 1 for family in self.families.values() if not family.are
        ):
            self._settled = {*self._settled, row} if len(self._settled) < MAX_SETS else {row}
        return min(changed, default=None)

    def _undecided(self, family: Family, places: Mapping[str, int]) -> bool:
        return any(name in places for name in family.members)

    def _new_name(self, name: str, first: int) -> int | None:
        """Add a metric; return its first step where it takes a role from another one, or had none."""
        changed = None
        for role in ONE_METRIC if self.declared else ():
            if self.declared.get(role) == name and self.chosen.get(role) != name:
                before = self.chosen.get(role)
                self.chosen[role] = name
                self.candidates.remove(name)
                changed = min(first, self.first_steps.get(before or name, first))
        of_sets = ((r, s) for r, sets in self.datasets.items() for s, m in sets.items() if m == name and r != LOSS)
        declared = next(of_sets, None) if self.datasets else None
        known = mixture_of(name) if declared is None else None
        if declared is not None:
            self._member(f"declared {declared[0]}", declared[0], first, name, declared[1], declared=True)
        elif not self._is_declared(name):
            self.candidates.add(name)
            if known is None or likely_role_of(name) is not None:
                return changed
            self._member(known.family, known.measure, first, name, known.dataset, declared=False)
        return changed

    def _member(self, key: str, measure: str, first: int, name: str, dataset: str, *, declared: bool) -> None:
        family = self.families.get(key)
        if family is None:
            if len(self.families) >= MAX_FAMILIES:
                return
            family = self.families[key] = Family(measure, first, declared=declared)
        if len(family.members) < MAX_MEMBERS:
            family.members[name] = dataset

    def _is_declared(self, name: str) -> bool:
        if not self.declared and not self.datasets:
            return False  # as mostly
        return name in self.declared.values() or any(name in sets.values() for sets in self.datasets.values())

    # --- input of detectors --------------------------------------------------------------------------------------

    def judged(self, names: Sequence[str], values: NDArray[np.float64]) -> JudgedRows:
        """Return rows of float64 (m, n) for detectors, without unjudged metrics."""
        row = key_of(names)
        plan = self._plans.get(row)
        if plan is None:
            if len(self._plans) >= MAX_SETS:
                self._plans = {}
            plan = self._plans[row] = self._plan(row)
        if plan.as_logged:
            return JudgedRows(row, values)
        if not plan.groups:
            return JudgedRows(plan.names, values[plan.places])
        found = {name: values[place] for place, name in plan.plain}
        for group in plan.groups:
            family = self.families[group.family]
            counts = counts_of(family, group.metrics, values[group.places])
            shares = shares_of(counts) if family.are in (COUNTS, GROWING) else counts
            if group.family == self._ratios:
                found.update({f"{RATIO}/{one}": share for one, share in zip(group.datasets, shares, strict=True)})
            if self.mixture:
                measure = family.measure or RATIO
                taken = shares if family.are not in (COUNTS, GROWING) else counts
                found.update({
                    f"{TAKEN}{measure}/{one}": column for one, column in zip(group.datasets, taken, strict=True)
                })  # fmt: skip
        return JudgedRows(tuple(found), list(found.values()))

    def _plan(self, row: tuple[str, ...]) -> _Plan:
        plain = [(place, known) for place, name in enumerate(row) if (known := self.known_as(name)) is not None]
        groups = []
        for key, family in self.families.items():
            own = [(place, name) for place, name in enumerate(row) if name in family.members]
            alone = len(own) == 1 and family.are in (COUNTS, GROWING)  # of one count there is no share
            if own and not alone and family.is_mixture and (key == self._ratios or self.mixture):
                places, metrics = [place for place, _ in own], [name for _, name in own]
                groups.append(_NamedSet(key, places, metrics, [family.members[name] for name in metrics]))
        as_logged = not groups and plain == list(enumerate(row))
        return _Plan(plain, [place for place, _ in plain], NameKey(name for _, name in plain), groups, as_logged)

    def known_as(self, metric: str) -> str | None:
        """Return the detectors' name of a metric, None for unjudged ones."""
        for role, sets in self.datasets.items():
            if role == LOSS and metric in sets.values():
                return f"{LOSS}/{next(one for one, name in sets.items() if name == metric)}"
        for role, name in self.declared.items():
            if name == metric:
                return metric if role_of(metric) == role else role
        own = role_of(metric)
        for one, chosen in self.chosen.items():
            if chosen == metric:
                return metric if own == one else one
            if own == one:
                return None  # another metric has this role
        return None if own is not None and self.declared.get(own) in self.first_steps else metric

    def own_name(self, known: str) -> str:
        """Return the metric behind a detectors' name."""
        for role, metric in {**self.chosen, **self.declared}.items():
            if role == known and metric in self.first_steps:
                return metric
        kind, _, dataset = known.partition("/")
        if dataset:
            named = self.datasets.get(kind, {}).get(dataset)
            if named is not None:
                return named
            if kind == RATIO and self._ratios:
                members = self.families[self._ratios].members
                return next((name for name, one in members.items() if one == dataset), known)
            if kind.startswith(TAKEN):
                return self._of_mixture(kind.removeprefix(TAKEN), dataset) or known
        return known

    def _of_mixture(self, measure: str, dataset: str) -> str | None:
        return next(
            (name for family in self.mixtures(measure) for name, one in family.members.items() if one == dataset), None
        )

    def mixtures(self, measure: str) -> Iterator[Family]:
        """Yield the families of shares (``ratio``), or of counts of ``tokens`` or ``samples``."""
        for family in self.families.values():
            if family.is_mixture and (family.measure or RATIO) == measure:
                yield family

    # --- requests ------------------------------------------------------------------------------------------------

    def judged_row(self, values: Mapping[str, float]) -> Mapping[str, float]:
        """Return one row for detectors."""
        names = tuple(values)
        plan = self._plans.get(names)
        if plan is not None and plan.as_logged:
            return values
        known, columns = self.judged(names, np.array([[value] for value in values.values()], float))
        return {name: float(column[0]) for name, column in zip(known, columns, strict=True)}

    def is_judged(self, metric: str, wants: Callable[[str], bool]) -> bool:
        """Return whether detectors get anything of a metric; ``wants``: whether they take a name."""
        known = self.known_as(metric)
        if known is not None and wants(known):
            return True
        return any(
            metric in family.members and family.is_mixture and (self.mixture or key == self._ratios)
            for key, family in self.families.items()
        )

    def of_training(self, metric: str) -> bool:
        """Return whether an unlisted metric identifies the rank that logs the training."""
        return self._is_declared(metric) or likely_role_of(metric) is not None or loss_rank(metric) == 1

    def compared_as(self, metric: str) -> str | None:
        """Return the name under which a metric's values are compared with others', None for none."""
        if self._ratios and (dataset := self.families[self._ratios].members.get(metric)) is not None:
            return f"{RATIO}/{dataset}" if self.families[self._ratios].are == SHARES else None
        return self.known_as(metric)
