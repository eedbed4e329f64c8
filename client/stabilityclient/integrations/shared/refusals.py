"""Why an order can't be carried out by a job whose loop is a framework's, in words for people."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from stabilityclient.rollback.decision import Rollback

__all__ = ["refusal"]


def refusal(rollback: Rollback, can: Iterable[str]) -> str:
    """Return why a job can't carry out a rollback, "" if it can.

    Args:
        can: the changes that it promised: some of ``lr_scale``, ``seed``, ``skip_batches``, ``skip_range``.
    """
    if rollback.checkpoint is None:
        return f"no checkpoint of step {rollback.to_step} is known"
    cannot = sorted(rollback.changes().keys() - set(can))
    return f"this job can't change {', '.join(cannot)}" if cannot else ""
