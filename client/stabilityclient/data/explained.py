"""Samples of one batch as the job's callable explains them: checked, cut, worst first. Pure."""

from __future__ import annotations

import math
import time

from stabilityclient.arguments import cut, cut_inside
from stabilityclient.errors import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    Sample = dict[str, Any]

__all__ = ["FIELDS", "ExplainedBatch", "explained", "repeated_share", "worst_first"]

#: Fields that a sample may have.
FIELDS = ("id", "dataset", "loss", "text", "shape", "tokens")
#: Samples of one batch that are looked at; a further one is not asked for.
MAX_SAMPLES = 4_096
MAX_NAME_CHARS = 200
#: Tokens of a sample in which repetitions are searched: some 3 ms of pure Python.
MAX_TOKENS = 8_192
#: Tokens in a row that count as repeated when they stand earlier: the shortest of the n-grams by which the data of
#: Gopher was filtered for repetition (Rae et al. 2021, table A1).
GRAM = 5
#: Dimensions of a shape.
MAX_DIMENSIONS = 8


class ExplainedBatch:
    """One batch, as its samples are shown.

    Attributes:
        samples: the worst ones, as the event has them (docs/wire.md).
        seen: how many were looked at. whole: False where time, or MAX_SAMPLES, ended it.
        losses, nonfinite: sum and number of the finite losses; how many are not finite.
        repeated: the largest share of repeated tokens, None where no tokens were given.
        error: exception of the callable, "" for none; the samples before it count.
    """

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.seen = self.finite = self.nonfinite = 0
        self.loss_sum = 0.0
        self.worst: float | None = None
        self.repeated: float | None = None
        self.whole = True
        self.error = ""

    def facts(self) -> dict[str, Any]:
        """Return the facts sent about the whole batch, without unknown fields."""
        found = {
            "samples": self.seen,
            "loss": self.loss_sum / self.finite if self.finite else None,
            "worst": self.worst,
            "nonfinite": self.nonfinite or None,
            "repeated": self.repeated,
            "whole": None if self.whole else False,
            "failed": True if self.error else None,
        }
        return {name: value for name, value in found.items() if value is not None}


def explained(
    batch: object,
    explain: Callable[[Any], Iterable[Mapping[str, Any]]],
    *,
    keep: int,
    chars: int,
    deadline: float,
    now: Callable[[], float] = time.monotonic,
) -> ExplainedBatch:
    """Ask the job's callable about a batch. Its exceptions are in the answer; only an end of the process propagates.

    Args:
        explain: returns a mapping of some of FIELDS for each sample; a generator is asked for one after the other.
        keep: samples that are kept, the worst ones. chars: of a text. deadline: on the clock of ``now``, seconds.
    """
    found = ExplainedBatch()
    samples: list[Sample] = []
    try:
        for given in explain(batch):
            sample = _sample(given, chars)
            found.seen += 1
            _count(found, sample)
            samples.append(sample)
            if len(samples) >= 4 * keep + 64:  # samples not among the worst need not be held
                samples = worst_first(samples)[:keep]
            if found.seen >= MAX_SAMPLES or now() >= deadline:
                found.whole = False
                break
    except Exception as error:
        found.error = cut(f"{type(error).__name__}: {error}", 1_000)
    found.samples = worst_first(samples)[:keep]
    return found


def worst_first(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples in turn by loss (one that is not finite is the worst) and by repetition, the worst ones first.

    A text of one token may have a low loss: its effect on the gradient is no smaller for that.
    """
    places = [len(samples)] * len(samples)
    by_loss = sorted(range(len(samples)), key=lambda at: -_height(samples[at]))
    for place, at in enumerate(by_loss):
        places[at] = 2 * place
    known = [at for at in range(len(samples)) if samples[at].get("repeated") is not None]
    for place, at in enumerate(sorted(known, key=lambda at: -samples[at]["repeated"])):
        places[at] = min(places[at], 2 * place + 1)
    return [samples[at] for at in sorted(by_loss, key=lambda at: places[at])]


def repeated_share(tokens: Sequence[int]) -> float | None:
    """Return which share of the tokens lies in GRAM tokens in a row that stand earlier in the same sample.

    Near 0 for prose, near 1 for one token, or one phrase, over and over; None for fewer than twice GRAM tokens.
    """
    if len(tokens) < 2 * GRAM:
        return None
    known: set[tuple[int, ...]] = set()
    covered = repeated = 0
    for at in range(len(tokens) - GRAM + 1):
        gram = tuple(tokens[at : at + GRAM])
        if gram in known:
            repeated += at + GRAM - max(at, covered)
            covered = at + GRAM
        else:
            known.add(gram)
    return repeated / len(tokens)


def _height(sample: Sample) -> float:
    loss = sample.get("loss")
    return math.inf if isinstance(loss, str) else -math.inf if loss is None else loss


def _count(found: ExplainedBatch, sample: Sample) -> None:
    loss, repeated = sample.get("loss"), sample.get("repeated")
    if isinstance(loss, str):
        found.nonfinite += 1
    elif loss is not None:
        found.finite += 1
        found.loss_sum += loss
        found.worst = loss if found.worst is None else max(found.worst, loss)
    if repeated is not None:
        found.repeated = repeated if found.repeated is None else max(found.repeated, repeated)


def _sample(given: Any, chars: int) -> Sample:
    """Return a sample for sending, without unknown fields.

    Raises:
        RefusedError: it is no mapping of FIELDS.
    """
    if not hasattr(given, "items"):
        raise RefusedError([f"a sample is a {type(given).__name__}, expected a dict with some of {', '.join(FIELDS)}"])
    fields = {name: value for name, value in given.items() if value is not None}
    foreign = [name for name in fields if name not in FIELDS]
    if foreign:
        raise RefusedError([f"a sample has {foreign[0]!r:.80}, expected some of {', '.join(FIELDS)}"])
    sample: Sample = {name: cut(fields[name], MAX_NAME_CHARS) for name in ("id", "dataset") if name in fields}
    if "loss" in fields:
        loss = float(fields["loss"])
        # JSON has no such numbers.
        sample["loss"] = (
            loss if math.isfinite(loss) else "NaN" if math.isnan(loss) else "Infinity" if loss > 0 else "-Infinity"
        )
    if "text" in fields:
        sample["text"] = cut_inside(fields["text"], chars)
    if "shape" in fields:
        sample["shape"] = [int(size) for size in fields["shape"]][:MAX_DIMENSIONS]
    if "tokens" in fields:
        sample |= _of_tokens(fields["tokens"])
    return sample


def _of_tokens(tokens: Any) -> Sample:
    listed = list(tokens.tolist() if hasattr(tokens, "tolist") else tokens)
    if listed and not hasattr(listed[0], "__index__"):
        kind = type(listed[0]).__name__
        raise RefusedError([f"tokens= holds a {kind}, expected the whole numbers of one sample in a row"])
    share = repeated_share(listed[:MAX_TOKENS])
    return {"tokens": len(listed)} | ({} if share is None else {"repeated": round(share, 4)})
