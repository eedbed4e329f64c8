"""Errors of NVIDIA's driver by number (Xid), with the action for each.

Numbers, names and immediate actions are those of NVIDIA's catalog
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, read in October 2025); the texts are own ones.
Those that leave the GPU healthy are the list of NVIDIA's Kubernetes device plugin (13, 31, 43, 45, 68, 109). The
driver's own action (recovery action, NVML field 230) counts more than this table.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["CATALOG", "Family", "XidClass", "table", "xid_of"]

#: application: start the job again, the GPU is not to blame. reset: reset the GPU. reboot: reboot the node. drain: take
#: the GPU out of use and inspect it. watch: no stop, keep an eye on it. symptom: effect of another fault.
XidClass = Literal["application", "reset", "reboot", "drain", "watch", "symptom"]
#: Affected part of the machine. ``software``: none.
Family = Literal["software", "hbm", "sram", "processor", "link", "bus", "thermal", "power", "gpu"]

#: Source of the table, for users.
CATALOG = "NVIDIA's Xid catalog (docs.nvidia.com/deploy/xid-errors)"


class Xid(NamedTuple):
    """One row of the table.

    Args:
        number: of the driver.
        meaning: a clause.
        cls: action class.
        family: affected part.
        action: NVIDIA's immediate action, in its own word.
        critical: it stops or endangers the job. False: for the next stop, or a note.
    """

    number: int
    meaning: str
    cls: XidClass
    family: Family
    action: str
    critical: bool = False


def _rows() -> tuple[Xid, ...]:
    rows = [
        Xid(8, "the GPU stopped working on a job's commands", "application", "software", "RESTART_APP"),
        Xid(13, "a kernel did something illegal (address or instruction)", "application", "software", "RESTART_APP"),
        Xid(31, "a kernel touched GPU memory that is not its own (page fault)", "application", "software",
            "RESTART_APP"),
        Xid(43, "the driver ended a job's channel", "symptom", "software", "IGNORE"),
        Xid(44, "fault while switching between jobs", "watch", "gpu", "IGNORE, contact support"),
        Xid(45, "a job's work was cleared away after another error or its end", "symptom", "software",
            "follow the other Xid"),
        Xid(46, "the GPU does not answer in time", "reset", "gpu", "RESET_GPU", True),
        Xid(48, "two bits of a memory word flipped: uncorrectable ECC error", "reset", "hbm", "WORKFLOW_XID_48", True),
        Xid(54, "the board's extra power cable gives no power", "drain", "power", "CHECK_MECHANICALS", True),
        Xid(60, "the video processor failed", "application", "software", "RESTART_APP"),
        Xid(62, "the GPU's micro-controller halted", "reset", "processor", "RESET_GPU", True),
        Xid(63, "a memory row is replaced by a spare one; that takes effect with the next reset", "watch", "hbm",
            "IGNORE"),
        Xid(64, "a bad memory row could not be replaced", "drain", "hbm", "RESET_GPU, contact support", True),
        Xid(68, "the video decoder failed", "application", "software", "RESTART_APP"),
        Xid(69, "a command for another engine class", "application", "software", "RESTART_APP"),
        Xid(74, "NVLink error: the connection to another GPU or a switch", "reset", "link", "WORKFLOW_NVLINK_ERR",
            True),
        Xid(78, "a virtual GPU did not start", "watch", "software", "UPDATE_SWFW"),
        Xid(79, "the GPU has fallen off the bus: the node no longer reaches it", "reboot", "bus", "RESTART_BM", True),
        Xid(80, "commands arrived damaged at the GPU", "application", "software", "RESTART_APP"),
        Xid(92, "many single-bit memory errors (corrected)", "watch", "hbm", "IGNORE, contact support"),
        Xid(93, "the GPU's own store of settings is nearly worn out", "watch", "gpu", "IGNORE, contact support"),
        # The job dies, the GPU works on: NVIDIA's action is that of an application, the cause is the memory.
        Xid(94, "uncorrectable memory error, kept inside the job that met it", "application", "hbm", "RESTART_APP",
            True),
        Xid(95, "uncorrectable memory error that was not kept inside one job", "reset", "hbm", "RESET_GPU", True),
        Xid(109, "switching between jobs took too long", "application", "software", "RESET_GPU"),
        Xid(110, "the GPU's security processor found something wrong", "reset", "processor", "RESET_GPU", True),
        Xid(119, "the GPU's system processor (GSP) does not answer the driver", "reset", "processor", "RESET_GPU",
            True),
        Xid(120, "the GPU's system processor (GSP) failed", "reset", "processor", "RESET_GPU", True),
        Xid(121, "link between GPU and CPU (C2C): corrected errors", "watch", "link", "IGNORE, contact support"),
        Xid(123, "the power-management unit does not answer", "reset", "processor", "contact support", True),
        Xid(136, "an NVLink did not come up", "drain", "link", "RESET_GPU", True),
        Xid(137, "another GPU's memory was used over NVLink without the right to", "application", "software",
            "IGNORE"),
        Xid(140, "uncorrectable memory error that was not recovered", "reset", "hbm", "RESET_GPU", True),
        Xid(151, "the keys of confidential computing could not be changed", "reboot", "gpu", "RESTART_VM", True),
        Xid(141, "a shortcut of the driver was switched off", "watch", "software", "IGNORE"),
        Xid(143, "the GPU could not be initialised", "drain", "gpu", "RESET_GPU, contact support", True),
        Xid(154, "the driver changed what it asks for (recovery action)", "watch", "gpu", "read the action"),
        Xid(155, "NVLink: error that software caused", "reset", "link", "RESET_GPU", True),
        Xid(156, "a part of the GPU is taken out of use at the next reset", "reset", "gpu", "RESET_GPU", True),
        Xid(157, "a part of the GPU could not be taken out of use", "watch", "gpu", "IGNORE, contact support"),
        Xid(158, "the GPU ran into a time limit and can't go on", "reset", "gpu", "RESET_GPU", True),
        Xid(163, "power smoothing was switched off", "watch", "power", "none given"),
        Xid(164, "power smoothing: half of its life is used up", "watch", "power", "none given"),
        Xid(165, "power smoothing: its life is used up", "watch", "power", "none given"),
        Xid(167, "PCIe: a request was never answered", "reboot", "bus", "none given", True),
        Xid(168, "a protected range of memory is smaller than it should be", "watch", "gpu", "none given"),
        Xid(169, "the GPU's security processor halted", "reset", "processor", "none given", True),
        Xid(171, "uncorrectable error in the GPU's memory (DRAM); goes with Xid 48", "reset", "hbm",
            "WORKFLOW_XID_48", True),
        Xid(172, "uncorrectable error inside the chip (SRAM); goes with Xid 48", "reset", "sram", "WORKFLOW_XID_48",
            True),
    ]  # fmt: skip
    alike: tuple[tuple[tuple[int, ...], Xid], ...] = (
        ((11, 25, 32), Xid(0, "a job's command buffer was damaged", "application", "software", "RESTART_APP")),
        ((37, 38, 66, 67), Xid(0, "the driver or its firmware did something illegal", "watch", "software", "IGNORE")),
        (
            (82, 83, 84, 86, 88, 89, *range(96, 106), 139),
            Xid(0, "an engine for pictures or video failed", "application", "software", "RESTART_APP"),
        ),
        ((106, 107), Xid(0, "a test message", "watch", "software", "IGNORE")),
        ((160, 161), Xid(0, "a memory channel is taken out of use, or could not be", "watch", "hbm", "IGNORE")),
        (
            (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
            Xid(0, "a copy engine stopped on a job's copy", "application", "software", "RESTART_APP"),
        ),
        # NVIDIA decides these by a sub-code and by Fatal or Nonfatal, which are in the kernel's line.
        (
            tuple(range(144, 151)),
            Xid(0, "NVLink error (fifth generation)", "reset", "link", "WORKFLOW_NVLINK5_ERR", True),
        ),
    )
    rows += [row._replace(number=number) for numbers, row in alike for number in numbers]
    return tuple(rows)


_TABLE = {row.number: row for row in _rows()}
#: Row of an unlisted number.
UNKNOWN_XID = Xid(0, "an error that our table does not have", "watch", "gpu", "see NVIDIA's catalog")


def xid_of(number: int) -> Xid:
    """Return the row of a number, UNKNOWN_XID for an unlisted one."""
    return _TABLE.get(number) or UNKNOWN_XID._replace(number=number)


def table() -> tuple[Xid, ...]:
    """Return all rows by number."""
    return tuple(_TABLE[number] for number in sorted(_TABLE))
