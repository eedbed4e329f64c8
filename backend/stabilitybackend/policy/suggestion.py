"""The shape of a suggestion, and what it is made from. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stabilitybackend.policy.going_back import Target, Usable
from stabilitybackend.policy.literature import RULE_OF_THUMB

__all__ = ["Case", "over", "say"]

#: Lines of a checklist.
MAX_CHECKS = 8


@dataclass(frozen=True, slots=True)
class Case:
    """What the advice is made from.

    Args:
        incident, checkpoints, now_step: as ``suggest`` gets them.
        history: the other incidents of the run, oldest first.
    """

    incident: Mapping[str, Any]
    checkpoints: Usable
    now_step: int
    history: Collection[Mapping[str, Any]]

    @property
    def evidence(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.incident["evidence"]
        return found

    @property
    def onset(self) -> int:
        return int(self.incident["onset_step"])


def say(
    action: str,
    text: str,
    back: Target | None = None,
    *,
    lr_scale: float | None = None,
    reseed: bool = False,
    wait_steps: int | None = None,
    checklist: Iterable[str] = (),
    sources: Iterable[str] = (),
) -> dict[str, Any]:
    """Return a suggestion in the shape of ``docs/api.md``.

    Args:
        back: where a rollback goes, or would go if it comes to that.
        wait_steps: how long to wait first, steps from the onset on.
        checklist: lines to go through; those beyond MAX_CHECKS are left out.
        sources: whose experience it is; empty ones are passed over.
    """
    return {
        "action": action,
        "to_step": None if back is None else back.to_step,
        "skip_batches": None if back is None else back.skip,
        "skip_range": None if back is None else back.skip_range,
        "lr_scale": lr_scale,
        "reseed": reseed,
        "wait_steps": wait_steps,
        "checklist": list(checklist)[:MAX_CHECKS],
        "text": text,
        "source": "; ".join(dict.fromkeys(source for source in sources if source)) or RULE_OF_THUMB,
    }


def over(incident: Mapping[str, Any], checks: Iterable[str] = ()) -> dict[str, Any]:
    """Return the suggestion for an incident that is over."""
    text = (
        "Nothing to do: it recovered by itself."
        if incident["state"] == "recovered"
        else "Nothing to do: it is resolved."
    )
    return say("none", text, checklist=checks)
