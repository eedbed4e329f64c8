"""What each condition means that an agent reports of a GPU, where its facts need no closer look: one line each.

Uncorrectable errors and remaps: thresholds of Meta's GCM (any is too many).
"""

from __future__ import annotations

from typing import NamedTuple

from stabilitybackend.judging.detectors.engine.base import Severity
from stabilitybackend.judging.gpus.xids import Family, XidClass

__all__ = ["MEANINGS", "Meaning", "register"]


class Meaning(NamedTuple):
    """What a condition asks for.

    Args:
        cls: how much it asks for. family: what it is about. severity: ``critical`` stops or endangers the job,
            ``warning`` asks for something at the next stop, ``info`` is only known.
        text: one clause for people, where the agent says none.
    """

    cls: XidClass
    family: Family
    severity: Severity
    text: str


#: By ``what`` of the event ``gpu`` (docs/wire.md).
MEANINGS: dict[str, Meaning] = {
    "ecc_uncorrected": Meaning("reset", "hbm", "critical", "memory errors that could not be corrected"),
    "sram_threshold": Meaning("drain", "sram", "warning", "so many errors inside the chip that it is to be replaced"),
    "remap_pending": Meaning(
        "reset", "hbm", "warning", "a memory row is replaced with the next reset; running work is safe"
    ),
    "remap_failed": Meaning("drain", "hbm", "critical", "a bad memory row could not be replaced"),
    "lost": Meaning("reboot", "bus", "critical", "the node does not reach it any more"),
    "reset_required": Meaning("reset", "gpu", "critical", "it works no more until it is reset"),
    "temperature": Meaning("watch", "thermal", "warning", "it is hotter than its limit"),
    "pcie_replay": Meaning("watch", "bus", "info", "its PCIe connection repeats packets"),
    "pcie_link": Meaning("watch", "bus", "warning", "its PCIe connection is slower than it should be"),
}


def register(what: str, meaning: Meaning) -> None:
    """Say what a condition means, from a plug-in. One of ours is replaced: a site may know better."""
    MEANINGS[what] = meaning
