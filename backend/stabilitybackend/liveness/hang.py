"""Says what is known of a job that stands still: where each rank is, and which one the others seem to wait for."""

from __future__ import annotations

from stabilitybackend.detectors.contract import Finding
from stabilitybackend.liveness.rank_watch import PHASE_ORDER, RankWatch

#: Ranks named one by one in a text; of the others only the number is told.
MAX_NAMED_RANKS = 8

__all__ = ["MAX_NAMED_RANKS", "hang_finding", "name_ranks"]


def hang_finding(visible: list[RankWatch], unseen: list[int], floor_s: float) -> Finding:
    """Return what is to be said of a standstill.

    Args:
        visible: running ranks whose slots arrive, by rank, at least one.
        unseen: running ranks whose slots do not arrive.
        floor_s: shortest budget of the monitor, seconds.
    """
    suspects, why = _suspects(visible)
    step = min(watch.step for watch in visible)
    stood = max(watch.stood_s for watch in visible)
    usual = [watch.usual_step_s for watch in visible if watch.usual_step_s is not None]
    text = _where(visible, suspects) + "."
    if usual:
        text += f" A step usually takes {max(usual):.3g} s."
    if suspects:
        text += f" Suspect: {name_ranks([watch.rank for watch in suspects])} ({why})."
    else:
        text += " All stand at the same place, so no rank is a suspect: the network or one device may be stuck."
    if unseen:
        text += f" We see nothing of {name_ranks(unseen)} (no agent reaches us from there): they may be the cause."
    named = [*suspects, *(watch for watch in visible if watch not in suspects)][:MAX_NAMED_RANKS]
    return Finding(
        detector="liveness",
        key=f"hang:{step}:{visible[0].source}",
        kind="hang",
        state="open",
        severity="critical",
        title=f"The job hangs at step {step}",
        text=text,
        onset_step=step,
        step=step,
        now_step=max(watch.step for watch in visible),
        rank=suspects[0].rank if len(suspects) == 1 else None,
        node=suspects[0].node if len(suspects) == 1 else None,
        score=stood,
        evidence={
            "stood_s": stood,
            "usual_step_s": max(usual, default=None),
            "suspects": [watch.rank for watch in suspects][:MAX_NAMED_RANKS],
            "why": why,
            "unseen_ranks": unseen[:MAX_NAMED_RANKS],
            "ranks": {
                str(watch.rank): {
                    "step": watch.step,
                    "phase": watch.phase,
                    "stood_s": watch.stood_s,
                    "budget_s": watch.budget_s(floor_s),
                    "python_silent_s": watch.python_silent_s,
                    "pid": watch.pid,
                    "node": watch.node,
                }
                for watch in named
            },
        },
    )


def _suspects(visible: list[RankWatch]) -> tuple[list[RankWatch], str]:
    """Return the ranks that the others seem to wait for, and why we think so; none when nothing tells them apart."""
    silent = [watch for watch in visible if watch.python_silent_s > 0]
    if silent and (len(silent) < len(visible) or len(visible) == 1):
        return silent, "its Python gives no sign either: stopped, or stuck in a call that holds the interpreter lock"
    if len(visible) == 1:
        return [], ""
    behind = [watch for watch in visible if watch.step == min(other.step for other in visible)]
    if len(behind) < len(visible):
        return behind, "behind the others by a step"
    phases = {watch.phase for watch in visible}
    if len(phases) == 1:
        return [], ""
    if phases <= set(PHASE_ORDER):
        first = min(phases, key=PHASE_ORDER.index)
        return [watch for watch in visible if watch.phase == first], f"still in {first}, the others are further on"
    fewest = min(phases, key=lambda phase: (sum(watch.phase == phase for watch in visible), phase))
    return [watch for watch in visible if watch.phase == fewest], f"in {fewest or 'no phase'}, the others are elsewhere"


def _where(visible: list[RankWatch], suspects: list[RankWatch]) -> str:
    """Say where the ranks stand, suspects first: "rank 1 is in data for 74 s; rank 0 waits in backward"."""
    parts = []
    for who, verb in ((suspects, "is"), ([watch for watch in visible if watch not in suspects], "waits")):
        places: dict[tuple[str, int], list[RankWatch]] = {}
        for watch in who:
            places.setdefault((watch.phase, watch.step), []).append(watch)
        for (phase, step), there in sorted(places.items(), key=lambda place: place[1][0].rank)[:MAX_NAMED_RANKS]:
            doing = verb if len(there) == 1 else {"is": "are", "waits": "wait"}[verb]
            stood = max(watch.stood_s for watch in there)
            place = f"in {phase}" if phase else f"at step {step}"
            parts.append(f"{name_ranks([watch.rank for watch in there])} {doing} {place} for {stood:.0f} s")
    text = "; ".join(parts)
    return text[:1].upper() + text[1:]


def name_ranks(ranks: list[int]) -> str:
    """Return "rank 3" or "ranks 1, 2 and 5 more"."""
    shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED_RANKS]))
    more = f" and {len(ranks) - MAX_NAMED_RANKS} more" if len(ranks) > MAX_NAMED_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
