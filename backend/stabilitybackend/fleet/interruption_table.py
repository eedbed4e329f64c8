"""Rows of the table of interruptions: the terms of Llama 3's published table, with visibility to a client.

Counts: "The Llama 3 Herd of Models" (arXiv 2407.21783), Table 5: unexpected interruptions in 54 days of the 405B model
on 16,384 GPUs. The counts sum to 419; the printed percentages do not follow from the counts (148 of 419 is
35.3 %, printed is 30.1 %), so shares are made from the counts here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stabilitybackend.schema.fleet import Interruption, InterruptionRow, Published, Visible

__all__ = ["CATEGORIES", "NOT_COUNTED", "PUBLISHED", "table_of"]


class Category(NamedTuple):
    """One row.

    Args:
        key: name in the API. label: as in the published table.
        visible: ``direct``: observed itself; ``indirect``: its effects are; ``no``: only a person can tell.
        sees: visible and invisible parts.
        published: count in the published table, None for own rows.
    """

    key: str
    label: str
    visible: Visible
    sees: str
    published: int | None = None


_ROWS = (
    Category(
        "faulty_gpu",
        "Faulty GPU",
        "direct",
        "Xids, lost GPUs, the driver's recovery action; a process that dies first may hide it",
        148,
    ),
    Category("gpu_hbm3", "GPU HBM3 Memory", "direct", "Xid 48, 64, 94, 95, 140, ECC counters, row remapping", 72),
    Category(
        "software_bug", "Software Bug", "direct", "exception, signal or a stuck stack; not the cause behind it", 54
    ),
    Category(
        "network_switch_cable",
        "Network Switch/Cable",
        "indirect",
        "collectives that stall or fail; never which switch or cable",
        35,
    ),
    Category(
        "host_maintenance",
        "Host Maintenance",
        "indirect",
        "only when it is announced by a signal; else a node that vanished",
        32,
    ),
    Category("gpu_sram", "GPU SRAM Memory", "direct", "Xid 172, the driver's SRAM threshold", 19),
    Category(
        "gpu_system_processor",
        "GPU System Processor",
        "direct",
        "Xid 62, 119, 120 in the kernel's log, calls of the driver that hang",
        17,
    ),
    Category("nic", "NIC", "indirect", "the kernel's log, where it can be read; else like a switch", 7),
    Category(
        "nccl_timeout",
        "NCCL Watchdog Timeouts",
        "direct",
        "who waits in which collective; why is unknown by definition",
        7,
    ),
    Category("sdc", "Silent Data Corruption", "indirect", "suspects only: one rank's loss or gradients differ", 6),
    Category("gpu_thermal", "GPU Thermal Interface + Sensor", "direct", "temperatures, lowered clocks", 6),
    Category("ssd", "SSD", "indirect", "errors of reading and writing; not the state of the disk", 3),
    Category("power_supply", "Power Supply", "no", "a node that goes silent; only its management controller knows", 3),
    Category("server_chassis", "Server Chassis", "no", "a node that goes silent; only people know", 2),
    Category(
        "io_expansion_board",
        "IO Expansion Board",
        "indirect",
        "several GPUs of one node lost at once; power looks the same",
        2,
    ),
    Category(
        "dependency",
        "Dependency",
        "indirect",
        "the text of an exception: a store, a host or a module that is not there",
        2,
    ),
    Category("cpu", "CPU", "indirect", "machine checks in the kernel's log, where it can be read", 2),
    Category("system_memory", "System Memory", "indirect", "SIGBUS, memory errors in the kernel's log", 2),
    Category("oom", "Out of memory", "direct", "the kernel's own report, or the exception of CUDA"),
    Category("storage_full", "Storage full", "direct", "the exception of a write: no space left, or a quota used up"),
    Category("unknown", "Unknown", "no", "a person who knows can say so"),
    Category(
        "user_stop", "Stopped by hand", "direct", "listed, not counted: nobody was interrupted against their will"
    ),
)
#: Key -> row, in the order of the table.
CATEGORIES: Mapping[str, Category] = {row.key: row for row in _ROWS}
#: Categories that do not count as interruptions.
NOT_COUNTED = frozenset({"user_stop"})
_TOTAL = sum(row.published or 0 for row in _ROWS)
#: Source of the published counts.
PUBLISHED = Published(
    source="The Llama 3 Herd of Models (arXiv 2407.21783), Table 5",
    count=_TOTAL,
    days=54,
    gpus=16_384,
    note="Shares are made from the counts; the percentages printed in the paper do not add up to them.",
)


def table_of(interruptions: Iterable[Interruption]) -> list[InterruptionRow]:
    """Return the table, with empty rows too."""
    counts: dict[str, int] = dict.fromkeys(CATEGORIES, 0)
    lost_s: dict[str, float] = dict.fromkeys(CATEGORIES, 0.0)
    total = 0
    for one in interruptions:
        key = one.category if one.category in CATEGORIES else "unknown"
        if not one.counted and key not in NOT_COUNTED:
            continue  # a stall that went on by itself: listed only
        counts[key] += 1
        lost_s[key] += one.time_lost_s
        total += key not in NOT_COUNTED
    return [
        InterruptionRow(
            category=row.key,
            label=row.label,
            count=counts[row.key],
            share=counts[row.key] / total if total and row.key not in NOT_COUNTED else 0.0,
            time_lost_s=lost_s[row.key],
            visible=row.visible,
            sees=row.sees,
            published=row.published,
            published_share=None if row.published is None else row.published / _TOTAL,
        )
        for row in _ROWS
    ]
