"""One answer on all ranks, by torch's process group; alone without one. A process with a group has imported torch."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["agreed", "rank_and_world"]


def rank_and_world() -> tuple[int, int]:
    """Return this rank and the number of ranks; 0 and 1 without a process group."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 0, 1
    return dist.get_rank(), dist.get_world_size()


def agreed(answer: Callable[[], Any]) -> Any:
    """Return on all ranks the result of ``answer()`` on the first one.

    Raises:
        RuntimeError: on all ranks, with the exception raised there.
    """
    rank, world = rank_and_world()
    if world == 1:
        return answer()
    box: list[Any] = [None, ""]
    if rank == 0:
        try:
            box[0] = answer()
        except Exception as error:  # the others wait for an answer
            box[1] = f"{type(error).__name__}: {error}"
    sys.modules["torch.distributed"].broadcast_object_list(box)
    if box[1]:
        raise RuntimeError(f"on the first rank: {box[1]}")
    return box[0]
