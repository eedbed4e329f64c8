"""The skeleton of the run page: header, KPI strip, focus chart, rail, small multiples, ranks, all metrics.

``KPIS`` and ``PANELS`` are tables on purpose: what is shown, under which words and from which metrics is read here,
and handed to the browser as data attributes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from dash import html

from stabilityfrontend import detectors_panel, walls_panel
from stabilityfrontend.controls import frame, more_panels, panel_head, segmented
from stabilityfrontend.declared import page
from stabilityfrontend.figures import LIMITS
from stabilityfrontend.job import about_panel, output_panel

__all__ = ["KPIS", "PANELS", "Kpi", "SmallChart", "first_requests", "skeleton"]

#: Names that a run's loss has, the likeliest first: asked for before the page knows what the run logs.
LOSSES = ("loss", "train/loss", "train_loss")


@dataclass(frozen=True)
class Kpi:
    """One cell of the strip.

    Args:
        id: last part of the element's id.
        label: words above the number.
        metric: the metric whose newest value and sparkline it shows, or "" for a cell that is computed.
        unit: word behind the number.
        median: the number is the median of the newest nine values: each one of them differs much from the next.
    """

    id: str
    label: str
    metric: str = ""
    unit: str = ""
    median: bool = False


@dataclass(frozen=True)
class SmallChart:
    """One small chart: the metrics whose name equals or, with a trailing ``*``, begins with what is given.

    Args:
        id: last part of the element's id.
        title: words above the chart.
        metrics: names or prefixes.
        per_rank: draw a line for each rank instead of the lowest one.
        unit: word beside the title.
        log: start with a logarithmic y axis.
    """

    id: str
    title: str
    metrics: tuple[str, ...]
    per_rank: bool = False
    unit: str = ""
    log: bool = False


KPIS = (
    Kpi("loss", "Loss", "loss"),
    Kpi("grad", "Gradient norm", "grad_norm"),
    Kpi("tokens", "Throughput", "tokens_per_s", "tokens/s", median=True),
    Kpi("step-time", "Step time", "step_time_s", "s", median=True),
    Kpi("ratio", "Image : text", "ratio/image_text"),
    Kpi("checkpoint", "Last checkpoint"),
    Kpi("incidents", "Open incidents"),
    Kpi("rollbacks", "Rollbacks"),
)

PANELS = (
    SmallChart("datasets", "Loss by dataset", ("loss/*",)),
    SmallChart("ratio", "Mixture", ("ratio/*",)),
    SmallChart("grad", "Gradient norm", ("grad_norm",)),
    SmallChart("step-time", "Step time by rank", ("step_time_s",), per_rank=True, unit="s"),
    SmallChart("tokens", "Throughput", ("tokens_per_s",), unit="tokens/s"),
    SmallChart("lr", "Learning rate", ("lr",)),
)


def first_requests() -> dict[str, Any]:
    """Return what the page's head asks the server for before its scripts are there (``assets/preload.js``).

    The large chart's own metric is not known yet: whichever of the usual names the run has is in the answer. What the
    strip and the panels show follows as soon as the metrics of the run are known.
    """
    patterns = [name for panel in PANELS for name in panel.metrics] + [kpi.metric for kpi in KPIS if kpi.metric]
    fine = [*LOSSES, "grad_norm"]
    return {
        "losses": LOSSES,
        "fine": fine,
        "patterns": [name for name in dict.fromkeys(patterns) if name not in fine],
        "strip": [*LOSSES, *(kpi.metric for kpi in KPIS if kpi.metric and kpi.metric not in LOSSES)],
        "points": {"fine": LIMITS["focus_points"], "panel": LIMITS["panel_points"]},
    }


@page("/runs/{run}", name="Run", live="run")
def skeleton() -> html.Div:
    """Return the page."""
    return frame(_bar(), *_body())


def _bar() -> list[Any]:
    """Return what the run page puts into the top bar."""
    return [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.Span(id="run-name", className="crumb-here"),
        html.Span(id="run-segment", className="chip"),
        html.Span(id="run-status", className="pill"),
        detectors_panel.badge(),
        html.Span(className="grow"),
        html.Span(
            [html.Span("step", className="label"), html.Span(id="run-step", className="value")], className="fact"
        ),
        html.Span(
            [html.Span("elapsed", className="label"), html.Span(id="run-elapsed", className="value")], className="fact"
        ),
        html.Span(id="live-pill", className="pill quiet"),
        html.Button("Run a task …", id="task-open", className="button", type="button", disabled=True),
        html.Button(
            [html.Span(className="icon icon-back"), "Roll back …"],
            id="rollback-open",
            className="button",
            type="button",
            disabled=True,
        ),
    ]


def _body() -> list[Any]:
    """Return the regions below the top bar, in the order in which they are read."""
    return [
        html.Div(id="command-strip", hidden=True),
        html.Div(id="run-note", hidden=True),
        html.Div(id="storage-note", hidden=True),
        html.Section([_kpi(kpi) for kpi in KPIS], id="kpis", className="kpis panel", **{"aria-label": "Now"}),
        html.Main(
            [
                html.Div(
                    [
                        _focus(),
                        output_panel.panel(),
                        about_panel.panel(),
                        detectors_panel.panel(),
                        detectors_panel.watched(),
                        html.Section([_panel(panel) for panel in PANELS], id="panels", className="panels"),
                        walls_panel.panel(),
                        more_panels(),
                        _all_metrics(),
                    ],
                    className="column",
                ),
                html.Aside([_incidents(), _lineage(), _checkpoints()], className="rail"),
            ],
            className="columns",
            id="run-main",
        ),
        html.Div(id="run-empty", hidden=True),
        html.Div([html.Div(id="run-foot"), html.Div(id="storage", className="storage")], className="foot"),
    ]


def _kpi(kpi: Kpi) -> html.Div:
    return html.Div(
        [
            html.Div(kpi.label, className="kpi-label"),
            html.Div(
                [html.Span("–", className="kpi-value"), html.Span(kpi.unit, className="kpi-unit")], className="kpi-line"
            ),
            html.Div(className="kpi-note"),
            html.Div(className="kpi-spark"),
        ],
        id=f"kpi-{kpi.id}",
        className="kpi",
        **{"data-metric": kpi.metric, "data-median": "yes" if kpi.median else ""},
    )


def _focus() -> html.Section:
    return html.Section(
        [
            panel_head(
                "Effective timeline",
                html.Span(id="focus-note", className="sub"),
                html.Span(className="grow"),
                html.Div(id="focus-legend", className="legend"),
                html.Button("Reset zoom", id="zoom-reset", className="toggle", type="button", hidden=True),
                segmented(
                    "focus-window",
                    "Newest steps shown",
                    [("0", "All"), ("2000", "2k"), ("500", "500"), ("100", "100")],
                ),
                title_id="focus-title",
            ),
            html.Div(
                [
                    # Made by the script: what is chosen there is of no interest to Dash.
                    html.Div(id="focus-view", className="tool"),
                    html.Div(id="focus-x", className="tool"),
                    html.Div(id="focus-smooth", className="tool"),
                    html.Span(className="grow"),
                    html.Button(
                        "Discarded", id="focus-ghosts", className="toggle on", type="button", **{"aria-pressed": "true"}
                    ),
                    segmented("focus-scale", "Y axis", [("linear", "Linear"), ("log", "Log")]),
                ],
                className="tools",
            ),
            html.Div(id="chart-focus", className="chart focus"),
            # Machines and processes, on the chart's own x axis (assets/chart/health_lane.js).
            html.Div(id="health-lane", className="health-lane", hidden=True),
        ],
        className="panel",
        id="focus-panel",
    )


def _panel(panel: SmallChart) -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H3(panel.title),
                    html.Span(panel.unit, className="sub", id=f"note-{panel.id}"),
                    html.Span(className="grow"),
                    html.Div(className="legend", id=f"legend-{panel.id}"),
                ],
                className="panel-head small",
            ),
            html.Div(id=f"chart-{panel.id}", className="chart small"),
        ],
        className="panel",
        id=f"panel-{panel.id}",
        **{"data-panel": json.dumps(asdict(panel))},
    )


def _rail_panel(title: str, id_: str, *parts: Any, short: bool = False) -> html.Section:
    body = html.Div(id=id_, className="scroll short" if short else "scroll")
    return html.Section([panel_head(title, *parts), body], className="panel")


def _incidents() -> html.Section:
    return _rail_panel(
        "Incidents",
        "incidents",
        html.Span(id="incidents-count", className="chip"),
        html.Span(className="grow"),
        detectors_panel.opener(),
        html.Button("All", id="incidents-all", className="toggle", type="button", hidden=True),
    )


def _lineage() -> html.Section:
    return _rail_panel(
        "Lineage",
        "lineage",
        html.Span(id="lineage-note", className="sub"),
        html.Span(className="grow"),
        html.Button("All", id="lineage-all", className="toggle", type="button", hidden=True),
    )


def _checkpoints() -> html.Section:
    return _rail_panel(
        "Checkpoints",
        "checkpoints",
        html.Span(className="grow"),
        html.Span(id="checkpoints-note", className="sub"),
        short=True,
    )


def _all_metrics() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.Button(
                        [html.Span(className="icon icon-fold"), "All metrics"],
                        id="all-fold",
                        className="fold",
                        type="button",
                        **{"aria-expanded": "false", "aria-controls": "all-metrics"},
                    ),
                    html.Span(id="all-note", className="sub"),
                    html.Span(className="grow"),
                    # A plain input and not dcc.Input: what is typed here is of no interest to the server.
                    html.Div(id="all-search"),
                ],
                className="panel-head",
            ),
            html.Div(id="all-metrics", className="cards", hidden=True),
        ],
        className="panel",
        id="all-panel",
    )
