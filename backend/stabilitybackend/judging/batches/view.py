"""The answer about a run's data. Pure: the first half on the event loop, the longer one in any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from stabilitybackend.judging.batches.fold import BatchFold
from stabilitybackend.lineage.tree import PathRange
from stabilitybackend.schema.batches import Batches, DatasetSamples, NewSamples, Repeated, SampleOverlap, SharedData
from stabilitybackend.schema.evidence import BY_OTHER_RUNS, SHARED_DATA, SharedDataFacts, facts
from stabilitybackend.schema.incidents import Incident

__all__ = ["Stretch", "shared_data", "view_of"]

#: Bins over the run for the count of new samples: a strip on the page, each some pixels wide.
MAX_BINS = 80

#: First and last step, both included.
Stretch = tuple[int, int]


def view_of(
    fold: BatchFold,
    path: Sequence[PathRange],
    sizes: Mapping[str, int],
    stretches: tuple[Stretch, Stretch] | None = None,
    other_runs: Sequence[SharedData] = (),
) -> Callable[[], Batches]:
    """Return a maker of the answer for the present state.

    Args:
        path: the effective one.
        sizes: samples of each data set, where reported.
        stretches: two, for their common samples. other_runs: with the run's data.
    """
    hashes, steps, _, sets = fold.samples.on(path)
    names, shifts = list(fold.samples.names), list(fold.samples.shifts)
    # Each retained sample counts for so many.
    weights = np.array([1 << shift for shift in shifts] or [1], np.float64)[sets]
    layout = fold.coverage.layouts[-1] if fold.coverage.layouts else None
    notes, repeats = list(_notes(fold)), _repeats(fold)
    judged, last, repeated, partial = (
        fold.repeats.judged, fold.coverage.last, fold.repeats.repeated, fold.repeats.partial,
    )  # fmt: skip

    def answer() -> Batches:
        datasets = []
        for at, name in enumerate(names):
            datasets += _dataset(name, hashes[sets == at], shifts[at], sizes.get(name))
        return Batches(
            steps=judged,
            last=last,
            repeated=repeated,
            partial=partial,
            of="" if layout is None else layout.of,
            parts=0 if layout is None else layout.parts,
            samples=0 if layout is None else layout.samples,
            notes=notes,
            repeats=repeats,
            datasets=datasets,
            new_samples=_new(hashes, steps, weights),
            overlap=None if stretches is None else _overlap(hashes, steps, weights, *stretches),
            other_runs=list(other_runs),
        )

    return answer


def shared_data(incidents: Iterable[Incident]) -> list[SharedData]:
    """Return the runs that had the same data, by their incidents, newest first."""
    here = [one for one in incidents if one.detector == BY_OTHER_RUNS and not one.dead]
    found = [(one, facts(one.evidence, SharedDataFacts)) for one in here]
    return [
        SharedData(
            first=one.onset_step,
            other_run=known.other_run,
            other_name=known.other_name,
            other_step=known.other_step,
            by=known.by,
            r=known.r,
            learned=one.kind != SHARED_DATA,
            incident_id=one.incident_id,
        )
        for one, known in sorted(found, key=lambda pair: -pair[0].opened)
    ]


def _notes(fold: BatchFold) -> list[str]:
    notes = list(fold.coverage.notes())
    if fold.repeats.partial:
        notes.append(
            f"At {fold.repeats.partial:,} steps ids of some ranks are missing, or came too late: these batches were "
            "compared as they are, and may have been known ones."
        )
    if fold.passed_over:
        notes.append(f"{fold.passed_over:,} ids came for steps that their rank had passed, and were left out.")
    if fold.ids.dropped:
        notes.append(f"The oldest {fold.ids.dropped:,} batches are no longer compared: there was no room for them.")
    return notes


def _repeats(fold: BatchFold) -> list[Repeated]:
    batches = [
        Repeated(
            what=one.what,
            onset=one.onset,
            newest=one.newest,
            ended=one.ended,
            earlier_step=one.old,
            offset_steps=one.offset if one.in_order else None,
            steps=one.steps,
            samples=one.samples or None,
            tokens=one.tokens or None,
            share=None,
            since=one.since,
            dataset="",
        )
        for one in fold.repeats.events
    ]
    samples = [
        Repeated(
            what="samples" if one.resumed else "pass",
            onset=one.onset,
            newest=one.newest,
            ended=one.ended,
            earlier_step=one.low,
            offset_steps=None,
            steps=None,
            samples=None,
            tokens=None,
            share=one.share,
            since=one.since,
            dataset=one.dataset,
        )
        for reuse in fold.reuse.values()
        for one in reuse.events
    ]
    return sorted([*batches, *samples], key=lambda one: -one.onset)


def _dataset(name: str, hashes: np.ndarray, shift: int, size: int | None) -> list[DatasetSamples]:
    """Return the facts of a data set, in a list: nothing without samples on the path."""
    if not len(hashes):
        return []
    _, counts = np.unique(hashes, return_counts=True)
    different = len(counts)
    once, twice = (int((counts == times).sum()) for times in (1, 2))
    estimate = different << shift
    never = None if size is None else max(0.0, 1 - estimate / size) if size else 0.0
    return [
        DatasetSamples(
            name=name,
            seen=len(hashes) << shift,
            distinct=estimate,
            once=once / different,
            twice=twice / different,
            more=(different - once - twice) / different,
            never=never,
            one_in=1 << shift,
            # Of a share p of n samples it is the root of p (1 - p) / n, and a half at most.
            error=0.0 if not shift else 0.5 / different**0.5,
        )
    ]


def _new(hashes: np.ndarray, steps: np.ndarray, weights: np.ndarray) -> list[NewSamples]:
    """Return the share of new samples over the run; ``steps`` rise."""
    if not len(hashes):
        return []
    _, firsts = np.unique(hashes, return_index=True)
    is_new = np.zeros(len(hashes), bool)
    is_new[firsts] = True
    low, high = int(steps[0]), int(steps[-1])
    width = max(1, -(-(high - low + 1) // MAX_BINS))
    found = []
    for begin in range(low, high + 1, width):
        part = slice(*np.searchsorted(steps, [begin, begin + width]).tolist())
        if part.stop > part.start:
            found.append(
                NewSamples(
                    begin,
                    min(begin + width - 1, high),
                    round(float(np.average(is_new[part], weights=weights[part])), 4),
                )
            )
    return found


def _overlap(
    hashes: np.ndarray, steps: np.ndarray, weights: np.ndarray, first: Stretch, second: Stretch
) -> SampleOverlap:
    def of(low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        inside = (steps >= low) & (steps <= high)
        found, at = np.unique(hashes[inside], return_index=True)
        return found, weights[inside][at]

    one, of_one = of(*first)
    two, of_two = of(*second)
    both = of_one[np.isin(one, two, assume_unique=True)].sum()
    return SampleOverlap(first, second, int(of_one.sum()), int(of_two.sum()), int(both))
