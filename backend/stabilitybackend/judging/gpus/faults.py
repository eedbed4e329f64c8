"""One physical fault of a GPU: its signs, the root among them, and its text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stabilitybackend.judging.detectors.engine.base import SEVERITIES, Finding, Severity
from stabilitybackend.judging.gpus.signs import RECOVERY_ACTIONS, Sign
from stabilitybackend.judging.gpus.xids import CATALOG, Family, XidClass, xid_of

__all__ = ["BURST_S", "GROUP_S", "NodeGpu", "PhysicalFault", "finding_of", "keeps_to_one_gpu"]

#: Signs of one GPU with less time between them are one fault, seconds. A bus loss causes its Xids within seconds, and
#: the slowest poll of the agent is once a minute.
GROUP_S = 60.0
#: More errors of the application on one GPU in a run point to the hardware. Own choice: NVIDIA's workflows for Xid 13
#: and 31 ask whether it stays with the GPU; a bug would meet any of them.
APPLICATION_REPEATS = 3
#: ... and more than so many times as often as on any other GPU of the run: a bug meets many of them.
APPLICATION_SHARE = 2
#: Errors of the application on one GPU with less time between them are one failure, seconds: an illegal access is
#: reported once per multiprocessor. No job starts again within it.
BURST_S = 10.0
#: The first repeats are reported one by one, then every tenth.
NAMED_REPEATS = 4
#: Signs kept of one fault; the root stays.
MAX_SIGNS = 24
#: Signs of a GPU out of order; they belong to any fault that asks for a reset.
FOLLOWERS = frozenset({"recovery_action", "reset_required", "lost", "call_hangs"})
_WARM = frozenset({"thermal", "power"})
_MEMORY = frozenset({"hbm", "sram"})
_NEEDS_RESET = frozenset({"reset", "reboot", "drain"})
_ASKS: dict[XidClass, str] = {
    "application": "Start the job again; such an error comes from the program first and does not blame the GPU.",
    "reset": "The GPU has to be reset before it is used again.",
    "reboot": "The node has to be rebooted before the GPU is used again.",
    "drain": "Take the GPU out of use and have it inspected.",
    "watch": "Nothing stops; keep an eye on it.",
    "symptom": "It follows from another error or from the end of a process.",
}


@dataclass(slots=True)
class NodeGpu:
    """A GPU as reported by its node.

    Args:
        uuid: "" without a report any more. ranks: of the job that use it.
        missing: its agent does not count it (any more); None: no agent ever did, it is in the kernel's log only.
    """

    node: str
    uuid: str = ""
    index: int | None = None
    name: str = ""
    bus_id: str = ""
    serial: str = ""
    memory_mib: float | None = None
    ranks: list[int] = field(default_factory=list)
    missing: bool | None = None

    @property
    def ident(self) -> str:
        """Return its name within the run."""
        return self.uuid or f"{self.node}/{self.index if self.index is not None else self.bus_id or '?'}"

    @property
    def is_named(self) -> bool:
        """Return whether it is one GPU, not all GPUs of its node."""
        return bool(self.uuid or self.bus_id) or self.index is not None

    @property
    def label(self) -> str:
        """Return "GPU 2"."""
        if not self.is_named:
            return "A GPU"
        return f"GPU {self.index}" if self.index is not None else f"GPU at {self.bus_id or self.uuid}"


@dataclass(slots=True)
class PhysicalFault:
    """A fault with all its signs.

    Args:
        key: identity within the run. node: its node.
        devices: ident -> GPU, the first one first.
        signs: (ident, name of the sign) -> sign, in order of detection.
        first, last: unix seconds of the node.
        onset_step, now_step: newest steps of the run at the first and last report.
        over: reason of its end, None while it is open.
        suspected: frequent errors of the application make the hardware a suspect.
        foreign: no rank of the job is on its GPUs, while ranks of the job are on others of its node: another job's.
    """

    key: str
    node: str
    devices: dict[str, NodeGpu]
    signs: dict[tuple[str, str], Sign]
    first: float
    last: float
    onset_step: int
    now_step: int
    over: str | None = None
    suspected: bool = False
    foreign: bool = False

    @property
    def root(self) -> Sign:
        """Return the sign nearest to the cause: hardware before its effects in programs, harmful before minor ones, an
        Xid before other signs, the first before later ones."""
        return min(self.signs.values(), key=lambda sign: (_depth(sign), -SEVERITIES.index(sign.severity), sign.first))

    @property
    def family(self) -> Family:
        """Return its part; an Xid 172 with a 48 is of the chip and not its memory."""
        if any(sign.family == "sram" for sign in self.signs.values()):
            return "sram"
        return self.root.family

    @property
    def action(self) -> int | None:
        """Return the recovery action asked for by the driver now, None for none."""
        for sign in self.signs.values():
            if sign.what == "recovery_action" and sign.lasts:
                return sign.facts.get("action")
        return None

    @property
    def cls(self) -> XidClass:
        """Return the action class: the driver's own before the table's, the gravest sign's first."""
        asked = RECOVERY_ACTIONS.get(self.action or 0)
        if asked is not None:
            return asked[0]
        order: tuple[XidClass, ...] = ("symptom", "watch", "application", "reset", "reboot", "drain")
        found = max((sign.cls for sign in self.signs.values()), key=order.index)
        return "drain" if self.suspected and found == "application" else found

    @property
    def severity(self) -> Severity:
        """Return its severity for this job."""
        return "info" if self.foreign else self.gravity

    @property
    def gravity(self) -> Severity:
        """Return the gravest of its signs."""
        gravest = max((sign.severity for sign in self.signs.values()), key=SEVERITIES.index)
        return "warning" if self.suspected and gravest == "info" else gravest

    @property
    def needs_reset(self) -> bool:
        """Return whether the GPU needs a repair before its next use."""
        return self.cls in _NEEDS_RESET and self.root.what != "nvlink" and not self.suspected

    @property
    def lasts(self) -> bool:
        """Return whether one of its conditions is still on."""
        return any(sign.lasts for sign in self.signs.values())

    @property
    def ranks(self) -> list[int]:
        """Return the ranks on its GPUs."""
        return sorted({rank for device in self.devices.values() for rank in device.ranks})

    @property
    def xids(self) -> list[int]:
        """Return its Xids, each once, in order of arrival."""
        return list(dict.fromkeys(sign.xid for sign in self.signs.values() if sign.xid is not None))

    @property
    def is_loss(self) -> bool:
        """Return whether the node has lost the GPU."""
        return any(sign.what == "lost" or sign.xid == 79 for sign in self.signs.values())

    def takes(self, ident: str, sign: Sign) -> bool:
        """Return whether a sign of one of its GPUs belongs to it."""
        if self.over is not None or ident not in self.devices:
            return False
        if (ident, sign.name) in self.signs:
            return True
        if (self.family in _WARM) != (sign.family in _WARM):
            return False
        if {self.family, sign.family} <= _MEMORY:
            return True
        near = sign.first - self.last <= GROUP_S
        return near or (self.needs_reset and (sign.what in FOLLOWERS or sign.xid == 154))

    def add(self, ident: str, sign: Sign) -> bool:
        """Add a sign; return whether it is new (not only a repeat)."""
        self.last = max(self.last, sign.last)
        known = self.signs.get((ident, sign.name))
        if known is None:
            if len(self.signs) >= MAX_SIGNS:
                return False
            self.signs[(ident, sign.name)] = sign
            return True
        news = (known.lasts, known.severity, known.facts.get("action")) != (
            sign.lasts, sign.severity, sign.facts.get("action"),
        )  # fmt: skip
        before, known.count = known.count, known.count + sign.count
        known.last, known.lasts, known.facts, known.severity = sign.last, sign.lasts, sign.facts, sign.severity
        return news or known.count <= NAMED_REPEATS or known.count // 10 > before // 10


def _depth(sign: Sign) -> int:
    """Return the distance of a sign from the root of its fault, 0 the nearest."""
    if sign.cls == "symptom" or sign.xid == 154:
        return 7
    if sign.xid is not None and sign.family != "software":
        return 0 if sign.severity == "critical" else 2
    if sign.xid is not None:
        return 4
    if sign.what in FOLLOWERS:
        # A lost GPU is no error of the program whose Xid was first; its driver's action may be one.
        return 3 if sign.what in ("lost", "reset_required") else 6
    if sign.severity == "critical":
        return 1
    return 3 if sign.cls in _NEEDS_RESET else 5


def keeps_to_one_gpu(times: int, others: int) -> bool:
    """Return whether programs fail so often on one GPU, and so seldom on any other, that it is a suspect."""
    return times > APPLICATION_REPEATS and times > APPLICATION_SHARE * others


def finding_of(fault: PhysicalFault) -> Finding:
    """Return the finding of a fault in its present state."""
    devices = list(fault.devices.values())
    first, root = devices[0], fault.root
    many = len(devices) > 1
    where = f"{len(devices)} GPUs of {fault.node}" if many else f"{first.label} of {fault.node}"
    ranks = fault.ranks
    state: Any = "open" if fault.over is None else "resolved"
    return Finding(
        detector="gpu",
        key=fault.key,
        kind="gpu_fault",
        state=state,
        severity=fault.severity,
        title=f"{where}: " + ("lost within a minute of each other" if many and fault.is_loss else root.text)[:120],
        text=_text(fault, where, first, root),
        onset_step=fault.onset_step,
        step=fault.onset_step,
        now_step=fault.now_step,
        rank=ranks[0] if len(ranks) == 1 else None,
        node=fault.node or None,
        score=float(sum(sign.count for sign in fault.signs.values())),
        evidence={
            "gpu": _gpu(first),
            "gpus": [_gpu(device) for device in devices],
            "class": fault.cls,
            "family": fault.family,
            "what": root.what,
            "xids": fault.xids,
            "recovery_action": fault.action,
            "driver_asks": RECOVERY_ACTIONS.get(fault.action or 0, (None, None))[1],
            "nvidia_action": None if root.xid is None else xid_of(root.xid).action,
            "ranks": ranks,
            "foreign": fault.foreign,
            "since": fault.first,
            "last": fault.last,
            "blames_hardware": fault.suspected or fault.family != "software",
            "signs": [
                {
                    "gpu": ident, "what": sign.what, "xid": sign.xid, "text": sign.text, "first": sign.first,
                    "last": sign.last, "count": sign.count, "on": sign.lasts, "said": sign.facts.get("said"),
                }
                for (ident, _), sign in fault.signs.items()
            ],
            "source": CATALOG if fault.xids else "NVML",
        },
    )  # fmt: skip


def _gpu(device: NodeGpu) -> dict[str, Any]:
    return {
        "uuid": device.uuid,
        "index": device.index,
        "name": device.name,
        "node": device.node,
        "bus_id": device.bus_id,
        "ranks": device.ranks,
    }


def _text(fault: PhysicalFault, where: str, first: NodeGpu, root: Sign) -> str:
    ranks = fault.ranks
    used = (
        "" if not ranks else f" (rank {ranks[0]})" if len(ranks) == 1 else f" (ranks {', '.join(map(str, ranks[:8]))})"
    )
    name = f", {first.name}" if first.name and len(fault.devices) == 1 else ""
    parts = [f"{where}{name}{used}: {root.text}."]
    if len(fault.devices) > 1:
        labels = ", ".join(device.label for device in fault.devices.values())
        parts = [f"{where}{used}: {labels} were lost within a minute of each other."]
        parts.append("That is rarely the GPUs themselves: look at the node's power, board and PCIe first.")
    others = [
        sign
        for sign in fault.signs.values()
        if sign is not root and sign.cls != "symptom" and sign.what != "recovery_action"
    ]
    with_it = list(dict.fromkeys(sign.text for sign in others))
    if with_it and len(fault.devices) == 1:
        parts.append(f"With it: {'; '.join(with_it[:6])}.")
    if fault.over is not None:
        return " ".join([fault.over, *parts])
    if fault.foreign:
        return " ".join([*parts, "No rank of this job is on it: reported for whoever looks after the node."])
    if fault.suspected:
        parts.append(
            f"It came {root.count} times on this GPU in this run: a bug of the program would meet other GPUs as well, "
            "so this one is a suspect. Take it out at the next stop and have it looked at."
        )
        return " ".join(parts)
    asked = RECOVERY_ACTIONS.get(fault.action or 0)
    if asked is not None:
        parts.append(f"NVIDIA's driver itself asks: {asked[1]}.")
        return " ".join(parts)
    if root.family == "software":
        parts.append(_ASKS["application"] if fault.cls == "application" else _ASKS[fault.cls])
    elif fault.cls == "application":
        parts.append("The job that met it has to be started again; the GPU goes on and replaces the bad memory row.")
    else:
        parts.append(_ASKS[fault.cls] if fault.severity == "critical" else _at_next_stop(fault.cls))
    return " ".join(parts)


def _at_next_stop(cls: XidClass) -> str:
    return {
        "reset": "Running work goes on: reset the GPU at the next stop.",
        "reboot": "Running work goes on: reboot the node at the next stop.",
        "drain": "Running work goes on: swap the GPU at the next stop.",
    }.get(cls, _ASKS[cls])
