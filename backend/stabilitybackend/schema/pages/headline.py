"""Top of a run's page, wall and table row: its main metrics, under their own names."""

from __future__ import annotations

import msgspec


class HeadlineCell(msgspec.Struct, frozen=True):
    """A metric whose newest value is shown.

    Attributes:
        id: short name, the same in all runs for the same role: ``loss``, ``grad``, ``kl``, ``other-2``.
        metric: its name, also the caption of the number.
        role: as of ``WatchedMetric``, or by its name (``reward``, ``kl``, ``accuracy`` ...); "" for any other.
        unit: behind the number, by its name; "" for none.
        median: a noisy metric: show the median of the newest nine.
    """

    id: str
    metric: str
    role: str
    unit: str = ""
    median: bool = False


class HeadlineChart(msgspec.Struct, frozen=True):
    """A small chart at the top of a run's page.

    Attributes:
        id: as of a cell; ``datasets`` and ``ratio`` are of a family.
        title: name of the metric or family.
        metrics: names, or ``prefix*`` for all names that begin so.
        unit: next to the title.
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
    """Main metrics of a run.

    Attributes:
        main: of the large chart, null with readings of GPUs only.
        below: of the row below it (the gradient norm), null for none.
        cells: at most eight, the most important first.
        charts: at most nine.
    """

    main: str | None
    below: str | None
    cells: list[HeadlineCell]
    charts: list[HeadlineChart]
