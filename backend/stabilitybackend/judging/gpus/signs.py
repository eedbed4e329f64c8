"""Severity and part of one event at a GPU. Pure, one event at a time.

Agents report facts and changes (docs/wire.md, event ``gpu``); they are judged here. Severity: ``critical`` stops or
endangers the job, ``warning`` asks for an action at the next stop, ``info`` is a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stabilitybackend.judging.detectors.engine.base import Severity
from stabilitybackend.judging.gpus.xids import Family, XidClass, xid_of
from stabilitybackend.schema.json_data import SENTENCE_CHARS

__all__ = ["MEANINGS", "RECOVERY_ACTIONS", "Meaning", "Sign", "sign_of"]

# Conditions reported by agents that need no further facts. Uncorrectable errors and remaps: thresholds of Meta's GCM
# (any is too many).


class Meaning(NamedTuple):
    """Meaning of a condition.

    Args:
        cls: action class. family: its part. severity: as above.
        text: one clause for users, where the agent has none.
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


#: Repeats that one event may stand for: agents report a storm of the same Xid as one event with their number.
MAX_REPEATS = 1_000_000
#: Actions of NVIDIA's driver (NVML field 230, GET_GPU_RECOVERY_ACTION; nvidia-ml-py 13.615), as class and text.
RECOVERY_ACTIONS: Mapping[int, tuple[XidClass, str]] = {
    1: ("reset", "reset the GPU"),
    2: ("reboot", "reboot the node"),
    3: ("reset", "let peer-to-peer traffic end, then reset the GPU if it still asks for that"),
    4: ("reset", "let its work end, then reset the GPU"),
    5: ("reset", "recover the IMEX domain (memory sharing between nodes)"),
    6: ("reset", "reset the GPU's bus"),
    7: ("reboot", "reboot the system"),
}
#: Drain and reset: for contained memory errors (manual of nvidia-smi, GPU Recovery Action). Other work continues and
#: may start again; the reset is for the next stop.
_WHEN_DRAINED = 4
#: Corrected memory errors for a warning, count since the driver was loaded. Source: Meta's GPU cluster monitoring
#: (facebookresearch/gcm, its NVML health check).
CORRECTED_MANY = 50_000_000
#: Retired memory pages for an inspection of a GPU of before 2020. Source: the same.
RETIRED_MANY = 10
#: Xids of the fifth generation of NVLink: the kernel's line has whether it is fatal (NVIDIA's catalog, decode table).
_WITH_SUB_CODE = range(144, 151)
_NOT_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
#: Harmful share of time at lowered clocks: gpud calls 0.6 events a minute over 10 min unhealthy.
THROTTLED_SHARE = 0.6
#: Share of time of a mere note about heat: one short dip of the clocks in a minute.
THROTTLED_LITTLE = 0.05
#: Duration of a harmful NVML call, seconds. Shorter ones happen on busy nodes.
CALL_HANGS_S = 10.0


@dataclass(slots=True)
class Sign:
    """One observation.

    Args:
        what: as in docs/wire.md, e.g. ``xid``. xid: its number.
        cls: action class. family: its part. severity: see above.
        text: one clause for users, without a full stop at its end.
        first, last: unix seconds of the node. count: repeats.
        lasts: a condition that is still on.
    """

    what: str
    cls: XidClass
    family: Family
    severity: Severity
    text: str
    first: float
    last: float
    xid: int | None = None
    count: int = 1
    lasts: bool = False
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return its identity for repeats."""
        if self.what == "throttle":
            return f"throttle:{self.facts.get('reason')}"
        if self.what == "nvlink":
            return "nvlink:down" if "down" in self.facts else "nvlink:errors"
        if self.what == "temperature":
            return f"temperature:{self.facts.get('sensor')}"
        return self.what if self.xid is None else f"xid:{self.xid}"


def sign_of(data: Mapping[str, Any], time: float) -> Sign | None:
    """Return the sign of a ``gpu`` event (``schema.events.GpuChange``), None for an unknown one."""
    what = data["what"]
    facts = {name[:40]: fact for name, fact in list((data.get("facts") or {}).items())[:16]}
    line = " ".join((data.get("text") or "").split())[:SENTENCE_CHARS].rstrip(".")
    lasts = data.get("state") == "on"
    if what == "xid":
        return _xid(facts, data, line, time)
    judged = _judged(what, facts)
    if judged is None:
        return None
    cls, family, severity, words = judged
    return Sign(what, cls, family, severity, line or words, time, time, lasts=lasts, facts=facts)


def _xid(facts: dict[str, Any], data: Mapping[str, Any], line: str, time: float) -> Sign | None:
    number = _number(facts, "xid")
    number = _number(data, "xid") if number is None else number
    if number is None or not 0 < number < 100_000:
        return None
    row = xid_of(int(number))
    severity: Severity = "critical" if row.critical else "info" if row.cls in ("symptom", "watch") else "warning"
    if row.number in (63, 92):
        severity = "warning"  # a reset at the next stop, or a memory that wears out
    if row.number in _WITH_SUB_CODE and _NOT_FATAL.search(line):
        row, severity = row._replace(cls="watch"), "warning"
    text = f"Xid {row.number}: {row.meaning}"
    repeats = min(MAX_REPEATS, max(0, int(_number(facts, "repeats") or 0)))
    facts = facts | {"said": line}
    return Sign("xid", row.cls, row.family, severity, text, time, time, row.number, 1 + repeats, facts=facts)


def _judged(what: str, facts: Mapping[str, Any]) -> tuple[XidClass, Family, Severity, str] | None:
    """Return class, family, severity and text of all but Xids."""
    if what == "recovery_action":
        action = _number(facts, "action")
        cls, words = RECOVERY_ACTIONS.get(int(action or 0), ("reset", f"recovery action {action}"))
        return cls, "gpu", "warning" if action == _WHEN_DRAINED else "critical", f"the driver asks: {words}"
    if what == "throttle":
        return _throttle(str(facts.get("reason") or ""), _share(facts))
    if what == "ecc_corrected":
        count = _number(facts, "count", "total", "corrected") or 0
        return "watch", "hbm", "warning" if count > CORRECTED_MANY else "info", "memory errors that were corrected"
    if what == "retired_pages":
        many = (_number(facts, "count", "pages", "total") or 0) > RETIRED_MANY
        return "watch", "hbm", "warning" if many else "info", "memory pages are taken out of use"
    if what == "call_hangs":
        long = (_number(facts, "seconds") or 0) >= CALL_HANGS_S
        severity: Severity = "critical" if long else "warning"
        return "reset", "processor", severity, "a call to its driver does not return"
    if what == "nvlink":
        down = facts.get("down") or str(facts.get("state") or "") in ("down", "inactive")
        return (
            "reset",
            "link",
            "critical" if down else "warning",
            "a link to another GPU " + ("is down" if down else "has errors"),
        )
    return MEANINGS.get(what)


def _throttle(reason: str, share: float | None) -> tuple[XidClass, Family, Severity, str]:
    unwell = share is not None and share >= THROTTLED_SHARE
    little = share is not None and share < THROTTLED_LITTLE
    if reason == "power_brake":
        return "watch", "power", "info" if little else "warning", "its clocks are lowered: the power supply asks for it"
    if reason == "sw_thermal":
        return "watch", "thermal", "warning" if unwell else "info", "its clocks are lowered by the driver: it is warm"
    # hw_slowdown is heat or power brake where the GPU does not distinguish.
    return "watch", "thermal", "info" if little else "warning", "its clocks are lowered by the hardware: it is too hot"


def _share(facts: Mapping[str, Any]) -> float | None:
    share = _number(facts, "share")
    return share / 100 if share is not None and share > 1 else share


def _number(facts: Mapping[str, Any], *names: str) -> float | None:
    """Return the first present one of some facts."""
    return next((float(facts[name]) for name in names if facts.get(name) is not None), None)
