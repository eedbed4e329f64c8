"""The skeleton of the run page: header, strip, large chart, rail, small charts, all metrics, ranks.

Which metrics strip and small charts show is the run's own: the server chooses them (``GET .../headline``).
"""

from __future__ import annotations

from typing import Any

from dash import html

from stabilityfrontend import detectors_panel, walls_panel
from stabilityfrontend.controls import frame, more_panels, panel_head, segmented
from stabilityfrontend.declared import page
from stabilityfrontend.figures import LIMITS
from stabilityfrontend.job import about_panel, autopilot_panel, output_panel

__all__ = ["first_requests", "skeleton"]

#: Names that a run's loss has, the likeliest first: asked for before the page knows what the run logs.
LOSSES = ("loss", "train/loss", "train_loss")


def first_requests() -> dict[str, Any]:
    """Return what the page's head asks the server for before its scripts are there (``assets/preload.js``).

    The large chart's own metric is not known yet: whichever of the usual names the run has is in the answer. What the
    strip and the small charts show is the run's headline, which the head asks for too.
    """
    return {
        "losses": LOSSES,
        "fine": [*LOSSES, "grad_norm"],
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
        html.H1(id="run-name", className="crumb-here", dir="auto"),
        html.Span(id="run-segment", className="chip"),
        html.A(id="run-status", className="pill"),
        detectors_panel.badge(),
        autopilot_panel.badge(),
        html.Span(className="grow"),
        html.Span(
            [html.Span("step", className="label"), html.Span(id="run-step", className="value")], className="fact"
        ),
        html.Span(
            [html.Span("elapsed", className="label"), html.Span(id="run-elapsed", className="value")], className="fact"
        ),
        html.Span(id="live-pill", className="pill quiet"),
        html.Button("Orders", id="orders-open", className="button", type="button", disabled=True),
        html.Button("Run a task …", id="task-open", className="button", type="button", disabled=True),
        html.Button("Checkpoint now", id="checkpoint-open", className="button", type="button", disabled=True),
        html.Button("Stop …", id="stop-open", className="button", type="button", disabled=True),
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
        html.Section(id="command-strip", hidden=True, **{"aria-label": "The command that is under way"}),
        html.Section(id="run-note", hidden=True, **{"aria-label": "What is wrong now"}),
        html.Section(id="storage-note", hidden=True, **{"aria-label": "Storage"}),
        html.Section(id="kpis", className="kpis panel", **{"aria-label": "Now"}),
        html.Main(
            [
                html.Div(
                    [
                        _focus(),
                        output_panel.panel(),
                        about_panel.panel(),
                        autopilot_panel.panel(),
                        detectors_panel.panel(),
                        detectors_panel.watched(),
                        html.P(id="log-notes", className="sub", hidden=True),
                        html.Section(id="panels", className="panels", hidden=True, **{"aria-label": "Charts"}),
                        _all_metrics(),
                        walls_panel.panel(),
                        more_panels(),
                    ],
                    className="column",
                ),
                html.Aside([_incidents(), _lineage(), _checkpoints()], className="rail"),
            ],
            className="columns",
            id="run-main",
        ),
        html.Main(id="run-empty", hidden=True),
        html.Section(
            [html.Div(id="run-foot"), html.Div(id="storage", className="storage")],
            className="foot",
            **{"aria-label": "Where its points are"},
        ),
    ]


def _focus() -> html.Section:
    return html.Section(
        [
            panel_head(
                "Effective timeline",
                # In full, where the chart has no room for it (assets/chart/line_chart.js).
                html.Span(id="focus-metric", className="sub"),
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
    """Return the place of all metrics as charts (assets/metrics/)."""
    return html.Section(
        [
            html.Div(
                [
                    html.Button(
                        [html.Span(className="icon icon-fold"), "All metrics"],
                        id="all-fold",
                        className="fold",
                        type="button",
                        **{"aria-expanded": "true", "aria-controls": "all-metrics"},
                    ),
                    html.Span(id="all-note", className="sub"),
                    html.Span(className="grow"),
                    # A plain input and not dcc.Input: what is typed here is of no interest to the server.
                    html.Div(id="all-search"),
                    html.Div(id="all-layouts"),
                ],
                className="panel-head",
            ),
            html.Div(id="all-trouble", role="status"),
            html.Div(id="all-missing", hidden=True),
            html.Div(id="all-none", className="nothing", hidden=True),
            html.Div(id="all-metrics"),
        ],
        className="panel",
        id="all-panel",
    )
