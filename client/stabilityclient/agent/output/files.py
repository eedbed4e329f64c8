"""Finds the files that ranks print to: where ``STABILITY_OUTPUT`` says so, else their file descriptors 1 and 2.

torchrun's ``--redirects`` and ``--log-dir``, a batch job of Slurm and ``python train.py > log`` all give a process a
plain file. A pipe or a terminal can't be read by others: of these there is no output.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from stabilityclient.agent.sources import Source

__all__ = ["OutputFile", "output_files", "switched_off"]

#: Files of one node that are followed: of more ranks the lowest ones.
MAX_FILES = 64
_STREAMS = {1: "out", 2: "err"}


@dataclass(frozen=True)
class OutputFile:
    """A file that ranks print to.

    Attributes:
        path: under which it is opened. key: tells it from any other file of the node.
        rank: the lowest rank that prints to it. stream: ``out`` or ``err``; ``out`` where both are one file.
        source: the id of the process of that rank.
    """

    path: str
    key: str
    rank: int
    stream: str
    source: str


def switched_off(setting: str) -> bool:
    """Return whether a ``STABILITY_OUTPUT`` says that nothing is to be read."""
    return setting.strip().lower() in ("off", "0", "none")


def output_files(sources: Iterable[Source], setting: str) -> list[OutputFile]:
    """Return the files of some living ranks, each once.

    Args:
        setting: STABILITY_OUTPUT: "" or ``on``: their file descriptors; else a path in which ``{rank}`` and
            ``{local_rank}`` stand for the rank.
    """
    found: dict[str, OutputFile] = {}
    for source in sorted(sources, key=lambda one: one.info.rank or 0):
        rank = source.info.rank or 0
        if setting.strip().lower() not in ("", "on", "1"):
            path = setting.replace("{rank}", str(rank)).replace("{local_rank}", str(source.info.local_rank or 0))
            paths = {1: path}
        elif source.elsewhere:
            continue
        else:
            paths = {fd: f"/proc/{source.info.pid}/fd/{fd}" for fd in _STREAMS}
        for fd, path in paths.items():
            key = _key(path)
            if key and key not in found and len(found) < MAX_FILES:
                found[key] = OutputFile(path, key, rank, _STREAMS[fd], source.info.source)
    return list(found.values())


def _key(path: str) -> str:
    """Return what tells a plain file from others, "" for anything else and for what may not be read."""
    try:
        facts = os.stat(path)
    except OSError:
        return ""
    if not stat.S_ISREG(facts.st_mode) or not os.access(path, os.R_OK):
        return ""
    return f"{facts.st_dev}:{facts.st_ino}"
