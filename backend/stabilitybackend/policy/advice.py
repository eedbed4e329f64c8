"""Says what to do about an incident: which checkpoint to go back to, how much data to skip, or to leave it alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: A checkpoint so close before the onset may hold the first damage already.
GUARD_STEPS = 2
#: Runs longer than this are told to go further back, as PaLM did; in a shorter one that would cost too much of it.
LONG_RUN_STEPS = 2_000
#: How far PaLM went back before a spike, and the least number of batches that it skipped then.
PALM_BACK_STEPS = 100
PALM_SKIP_BATCHES = 200
#: Batches after the onset that are skipped at least: bad data comes in stretches, and its end is not known yet.
SKIP_PAST_ONSET_BATCHES = 50
PALM_SOURCE = "PaLM (arXiv 2204.02311): restart about 100 steps before the spike and skip 200 to 500 batches"

#: Kinds that are cured by going back to a checkpoint.
_ROLL_BACK_KINDS = frozenset({"spike", "divergence", "nonfinite", "resume_artifact", "data_mix_drift", "level_shift"})

__all__ = ["GUARD_STEPS", "suggest"]


def suggest(
    incident: Mapping[str, Any], checkpoints: Sequence[Mapping[str, Any]], now_step: int
) -> dict[str, Any] | None:
    """Return the suggestion for an incident, or None where there is nothing to say.

    Args:
        incident: in the shape of ``docs/api.md``.
        checkpoints: all known ones, in the shape of ``docs/api.md``; dead and vanished ones are passed over.
        now_step: newest step that the incident's detector saw.

    Returns:
        ``{"action", "to_step", "skip_batches", "lr_scale", "text", "source"}``. ``action`` is ``roll_back``,
        ``wait``, ``none``, ``restart`` or ``inspect``.
    """
    kind = incident["kind"]
    if kind == "hang":
        return _say(
            "inspect",
            "Look at the suspect rank first: its stack shows what it waits for. A restart now loses the cause.",
        )
    if kind == "process_death":
        return _restart(incident, checkpoints)
    if kind == "agent_lost":
        return _say(
            "wait", "The job itself may be well. Look at the node and its network; the spool keeps what it logs."
        )
    if kind not in _ROLL_BACK_KINDS:
        return None
    if incident["state"] != "open":
        return _say(
            "none",
            "Nothing to do: it is over by itself."
            if incident["state"] == "recovered"
            else "Nothing to do: it is over.",
        )
    return _roll_back(incident, checkpoints, now_step)


def _roll_back(incident: Mapping[str, Any], checkpoints: Sequence[Mapping[str, Any]], now_step: int) -> dict[str, Any]:
    onset = incident["onset_step"]
    steps = sorted(
        c["step"] for c in checkpoints if c["available"] and not c["dead"] and c["step"] <= onset - GUARD_STEPS
    )
    if not steps:
        return _say(
            "wait",
            f"No checkpoint from before step {onset} is at hand, so there is nothing to go back to. "
            "Save one as soon as it is over.",
        )
    to_step, source = steps[-1], "the newest checkpoint from before the onset"
    long_run = now_step > LONG_RUN_STEPS
    if long_run:
        far = [step for step in steps if step <= onset - PALM_BACK_STEPS]
        to_step, source = (far[-1] if far else to_step), PALM_SOURCE
    skip = max(now_step, onset + SKIP_PAST_ONSET_BATCHES) - to_step
    if long_run:
        skip = max(skip, PALM_SKIP_BATCHES)
    lost = max(0, now_step - to_step)
    if_pending = "If it does not come back by itself: roll" if incident["recovery"] == "pending" else "Roll"
    return _say(
        "roll_back",
        f"{if_pending} back to the checkpoint of step {to_step}, {onset - to_step} steps before the onset, and skip "
        f"{skip} batches so that the same data is not met again. {lost} steps are trained anew.",
        to_step=to_step,
        skip_batches=skip,
        source=source,
    )


def _restart(incident: Mapping[str, Any], checkpoints: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if incident["state"] != "open":
        return _say("none", "Nothing to do: the job runs again.")
    steps = [c["step"] for c in checkpoints if c["available"] and not c["dead"]]
    where = f" It can resume from the checkpoint of step {max(steps)}." if steps else " No checkpoint is known."
    return _say("restart", "Start the job again if its launcher does not." + where)


def _say(
    action: str, text: str, to_step: int | None = None, skip_batches: int | None = None, source: str = "rule of thumb"
) -> dict[str, Any]:
    return {
        "action": action,
        "to_step": to_step,
        "skip_batches": skip_batches,
        "lr_scale": None,
        "text": text,
        "source": source,
    }
