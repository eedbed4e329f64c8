"""How ranks, nodes and GPUs are named in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stabilitybackend.liveness.budgets import AFTER_LOOP
from stabilitybackend.liveness.rank_watch import RankWatch

#: Ranks named one by one in a text; of the others only the number is told.
MAX_NAMED_RANKS = 8

__all__ = ["MAX_NAMED_RANKS", "capital", "gpus_of", "join_words", "name_ranks", "nodes_of", "place_of", "seat_of"]


def name_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3", "ranks 1, 2" or "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 5 more"."""
    shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED_RANKS]))
    more = f" and {len(ranks) - MAX_NAMED_RANKS} more" if len(ranks) > MAX_NAMED_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def seat_of(watch: RankWatch) -> str:
    """Return "rank 5 (node gpu-03, GPU 2)", with what is known of it."""
    parts = [f"node {watch.node}"] if watch.node else []
    index = (watch.gpu or {}).get("index")
    if isinstance(index, int):
        parts.append(f"GPU {index}")
    return f"rank {watch.rank}" + (f" ({', '.join(parts)})" if parts else "")


def place_of(watch: RankWatch) -> str:
    """Return "in data" or "at step 12"."""
    if watch.phase:
        return "behind its loop of steps" if watch.phase == AFTER_LOOP else f"in {watch.phase}"
    if watch.sparse or watch.stepless:
        return "at a step that is not told"
    return f"at step {watch.step}" if watch.step >= 0 else "before the first step"


def nodes_of(watches: Iterable[RankWatch]) -> list[str]:
    """Return the nodes of some ranks, sorted."""
    return sorted({watch.node for watch in watches if watch.node})


def gpus_of(watches: Iterable[RankWatch]) -> list[dict[str, Any]]:
    """Return the GPUs of some ranks, in the shape of a verdict."""
    return [
        {"rank": watch.rank, "node": watch.node, "index": watch.gpu.get("index"), "uuid": watch.gpu.get("uuid")}
        for watch in watches
        if watch.gpu
    ]


def capital(text: str) -> str:
    """Return a sentence with a capital letter."""
    return text[:1].upper() + text[1:]


def join_words(text: str) -> str:
    """Return a text with single spaces."""
    return " ".join(text.split())
