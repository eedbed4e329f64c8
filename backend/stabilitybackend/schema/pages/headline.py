"""What of a run stands on top of its page, on a wall and in a table: its own metrics, under their own names."""

from __future__ import annotations

import msgspec


class HeadlineCell(msgspec.Struct, frozen=True):
    """A metric whose newest value is shown.

    Attributes:
        id: short name of the place, the same in all runs for the same role: ``loss``, ``grad``, ``kl``, ``other-2``.
        metric: its name, which is also the words above the number.
        role: as of ``WatchedMetric``, or what its name says (``reward``, ``kl``, ``accuracy`` ...); "" for any other.
        unit: word behind the number, from its name; "" where the name says none.
        median: each value differs much from the next: show the median of the newest nine.
    """

    id: str
    metric: str
    role: str
    unit: str = ""
    median: bool = False


class HeadlineChart(msgspec.Struct, frozen=True):
    """A small chart that a run's page shows at once.

    Attributes:
        id: as of a cell; ``datasets`` and ``ratio`` are of a family.
        title: the metric's name, or that of the family.
        metrics: names, or ``prefix*`` for all names that begin so.
        unit: word beside the title.
        per_rank: a line for each rank instead of the lowest one.
        log: begins with a logarithmic y axis.
    """

    id: str
    title: str
    metrics: list[str]
    unit: str = ""
    per_rank: bool = False
    log: bool = False


class Headline(msgspec.Struct, frozen=True):
    """What of a run is shown first.

    Attributes:
        main: the metric of the large chart, null where only GPUs are read so far.
        below: the metric of the row below it (the gradient norm), null for none.
        cells: at most eight, the most important first.
        charts: at most nine.
    """

    main: str | None
    below: str | None
    cells: list[HeadlineCell]
    charts: list[HeadlineChart]
