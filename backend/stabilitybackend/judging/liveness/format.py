"""Names of ranks, nodes and GPUs in sentences."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from stabilitybackend.judging.liveness.budgets import AFTER_LOOP
from stabilitybackend.judging.liveness.rank_watch import RankWatch
from stabilitybackend.schema.json_data import MAX_NAMED
from stabilitybackend.schema.verdicts import SuspectGpu

#: Ranks named one by one in a text; the others are counted.
MAX_NAMED_RANKS = 8

__all__ = [
    "MAX_NAMED_RANKS",
    "capital",
    "gpus_of",
    "name_nodes",
    "name_ranks",
    "nodes_of",
    "place_of",
    "seat_of",
    "sentence",
]


def sentence(text: str) -> str:
    """Return a text with one full stop at its end, "" for an empty one."""
    text = text.strip()
    return text if text.endswith((".", "!", "?")) or not text else text + "."


def name_ranks(ranks: Sequence[int]) -> str:
    """Return "rank 3", "ranks 1, 2" or "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 5 more"."""
    shown = ", ".join(map(str, sorted(ranks)[:MAX_NAMED_RANKS]))
    more = f" and {len(ranks) - MAX_NAMED_RANKS} more" if len(ranks) > MAX_NAMED_RANKS else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"


def name_nodes(nodes: Collection[str], every: Collection[str] = ()) -> str:
    """Return "a and b", "a, b, c and 5 more", or "rack3-*" where these are all with that prefix, and others exist.

    Args:
        nodes: to be named. every: all nodes.
    """
    names = sorted(set(nodes))
    if len(names) <= MAX_NAMED:
        return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    pairs = enumerate(zip(names[0] + "\0", names[-1] + "\1", strict=False))  # the first and the last differ most
    shared = re.sub(r"[0-9a-zA-Z]*$", "", names[0][: next(at for at, (one, other) in pairs if one != other)])
    alike = {node for node in every if node.startswith(shared)}
    if shared and alike == set(names) and len(alike) < len(set(every)):
        return f"{shared}*"
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"


def seat_of(watch: RankWatch) -> str:
    """Return "rank 5 (node gpu-03, GPU 2)", with the available facts."""
    parts = [f"node {watch.node}"] if watch.node else []
    if watch.gpu is not None and watch.gpu.index is not None:
        parts.append(f"GPU {watch.gpu.index}")
    return f"rank {watch.rank}" + (f" ({', '.join(parts)})" if parts else "")


def place_of(watch: RankWatch) -> str:
    """Return "in data" or "at step 12"."""
    if watch.phase:
        return "after its step loop" if watch.phase == AFTER_LOOP else f"in {watch.phase}"
    if watch.sparse or watch.stepless:
        return "at an unknown step"
    return f"at step {watch.step}" if watch.step >= 0 else "before the first step"


def nodes_of(watches: Iterable[RankWatch]) -> list[str]:
    """Return the nodes of some ranks, sorted."""
    return sorted({watch.node for watch in watches if watch.node})


def gpus_of(watches: Iterable[RankWatch]) -> list[SuspectGpu]:
    """Return the GPUs of some ranks."""
    known = ((watch, watch.gpu) for watch in watches if watch.gpu)
    return [SuspectGpu(watch.rank, watch.node, gpu.index, gpu.uuid) for watch, gpu in known]


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
