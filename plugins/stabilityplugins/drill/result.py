"""Result of a drill, in the order of its readers' questions: clean or not, the first loss, its cost."""

from __future__ import annotations

import msgspec

from stabilityplugins.drill.comparisons import Check, Legs, check_state
from stabilityplugins.drill.data_check import check_data
from stabilityplugins.drill.series import LOSS, Series, compare_series, same_training

__all__ = ["Result", "judge"]

#: Things that ``--allow`` may name, and the names of the checks.
THINGS = {
    "weights": "weights",
    "buffers": "buffers",
    "optimizer": "optimizer state",
    "settings": "optimizer settings",
    "scaler": "GradScaler",
    "rate": "learning rate",
    "data": "data",
    "rng": "random numbers",
    "steps": "step counter",
}
#: Order of causes: a later one may follow from an earlier one.
_ORDER = [*THINGS.values()]


class Result(msgspec.Struct):
    """The verdict.

    Args:
        clean: everything that was seen is restored. first: the first thing that was not; None for none.
        text: the verdict in one sentence. cost: in one sentence; empty where it is clean.
        checks: each thing of the state. series: each metric.
        stopped_at, resumed_at: steps. compared: steps after the resume that were compared.
        ranks: of the straight and of the resumed leg. deterministic: two straight starts are equal bit by bit.
        seen: state that the probe could not see, in sentences.
    """

    clean: bool
    first: str | None
    text: str
    cost: str
    checks: list[Check]
    series: list[Series]
    stopped_at: int
    resumed_at: int
    compared: int
    ranks: list[int]
    deterministic: bool
    not_seen: list[str] = []


def judge(legs: Legs, allowed: frozenset[str] = frozenset()) -> Result:
    """Return the result of a drill of a job with the probe.

    Args:
        allowed: names of checks that may differ.
    """
    series = compare_series(legs)
    checks = [*check_state(legs), check_data(legs)]
    buffers = _buffers(legs, checks)
    checks = sorted([*checks, *([buffers] if buffers else [])], key=lambda check: _ORDER.index(check.name))
    _random_before_data(checks)
    wrong = [check for check in checks if check.restored is False and not check.follows and check.name not in allowed]
    differing = [one for one in series if one.verdict == "different"]
    rounds = min(len(one.rounds) for one in legs.resumed.ranks.values())
    straight = min(len(one.rounds) for one in legs.straight.ranks.values())
    compared = max(0, min(rounds, straight - legs.at.resumed))
    deterministic = same_training(legs.straight, legs.again)
    same_end = _same_end(legs, compared)
    first = wrong[0].name if wrong else None
    unknown = not wrong and not allowed and legs.same_world and (differing or (deterministic and not same_end))
    if unknown:
        first = "something that the probe can't see"
    found = Result(
        clean=first is None,
        first=first,
        text="",
        cost="" if first is None else _cost(series, compared, same_end),
        checks=checks,
        series=series,
        stopped_at=legs.step(-1) + legs.at.saved - legs.at.resumed,
        resumed_at=legs.step(-1),
        compared=compared,
        ranks=[len(legs.straight.ranks), len(legs.resumed.ranks)],
        deterministic=deterministic,
        not_seen=[text for one in legs.resumed.ranks.values() for text in one.troubles],
    )
    found.text = _text(found, legs, wrong, same_end, differing)
    return found


def _buffers(legs: Legs, checks: list[Check]) -> Check | None:
    """Compare the modules' buffers; seen after the first batch went through, so its effect counts too."""
    for rank, straight, _, resumed in legs.pairs():
        right = legs.right(straight, 0)
        if right is None or not resumed.rounds or not legs.steady(rank, lambda one: one.buffers):
            continue
        if resumed.rounds[0].buffers != right.buffers:
            wrong = {check.name for check in checks if check.restored is False}
            causes = [name for name in ("weights", "data") if name in wrong]
            if not legs.same_world:
                return Check("buffers", None, "not compared on another number of ranks")
            return Check("buffers", False, "running statistics or others differ", causes[0] if causes else "")
    return None


def _random_before_data(checks: list[Check]) -> None:
    """Where samples come from nowhere and the random numbers are not restored, the order was drawn from them."""
    at = {check.name: number for number, check in enumerate(checks)}
    data, random = checks[at["data"]], checks[at["random numbers"]]
    if data.restored is False and random.restored is False and data.detail.startswith("other samples"):
        data.follows = "random numbers"


def _same_end(legs: Legs, compared: int) -> bool:
    """Whether the weights after the last compared round are those of the straight leg."""
    for _, straight, _, resumed in legs.pairs():
        right = legs.right(straight, compared - 1) if compared else None
        if right is None or right.weights != resumed.rounds[compared - 1].weights:
            return False
    return True


def _cost(series: list[Series], compared: int, same_end: bool) -> str:
    loss = next((one for one in series if one.name == "loss" and one.mean is not None), None)
    loss = loss or next((one for one in series if one.name == LOSS and one.mean is not None), None)
    if loss is not None and loss.mean is not None and loss.last is not None:
        return (
            f"over the next {compared} steps the loss is {loss.mean:+.4g} on average against the straight run, "
            f"{loss.last:+.4g} at the last"
        )
    if same_end:
        return f"no effect within {compared} steps: weights and metrics are those of the straight run"
    return f"the weights after {compared} steps are not those of the straight run"


def _text(found: Result, legs: Legs, wrong: list[Check], same_end: bool, differing: list[Series]) -> str:
    stretch = f"stopped after step {found.stopped_at}, resumed, {found.compared} steps compared"
    if legs.at.again:
        return f"NOT RESTORED: anything. The job began again at its first step ({stretch})"
    if wrong:
        more = [check.name for check in wrong[1:]]
        also = f"; also not restored: {', '.join(more)}" if more else ""
        detail = f" ({wrong[0].detail})" if wrong[0].detail else ""
        return f"NOT RESTORED: {wrong[0].name}{detail}{also}"
    if not found.clean:
        since = f" from step {differing[0].since} on, first in {differing[0].name}" if differing else ""
        return f"DIFFERENT: all that was seen is restored, yet training differs{since}"
    if same_end and not differing:
        return f"CLEAN: identical to a straight run ({stretch})"
    if not legs.same_world:
        return f"CLEAN: all state is restored on {found.ranks[1]} ranks in place of {found.ranks[0]} ({stretch})"
    return f"CLEAN: within the job's own noise ({stretch})"
