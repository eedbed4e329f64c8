"""The skeleton of the run page: header, KPI strip, focus chart, rail, small multiples, ranks, all metrics.

``KPIS`` and ``PANELS`` are tables on purpose: what is shown, under which words and from which metrics is read here,
and handed to the browser as data attributes.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from dash import html

__all__ = ["KPIS", "PANELS", "Kpi", "Panel", "bar", "body"]


@dataclass(frozen=True)
class Kpi:
    """One cell of the strip.

    Args:
        id: last part of the element's id.
        label: words above the number.
        metric: the metric whose newest value and sparkline it shows, or "" for a cell that is computed.
        unit: word behind the number.
        good: which way is better: ``down``, ``up`` or "" for neither.
    """

    id: str
    label: str
    metric: str = ""
    unit: str = ""
    good: str = ""


@dataclass(frozen=True)
class Panel:
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
    Kpi("loss", "Loss", "loss", good="down"),
    Kpi("grad", "Gradient norm", "grad_norm", good="down"),
    Kpi("tokens", "Throughput", "tokens_per_s", "tokens/s", "up"),
    Kpi("step-time", "Step time", "step_time_s", "s", "down"),
    Kpi("ratio", "Image : text", "ratio/image_text"),
    Kpi("checkpoint", "Last checkpoint"),
    Kpi("incidents", "Open incidents"),
    Kpi("rollbacks", "Rollbacks"),
)

PANELS = (
    Panel("datasets", "Loss by dataset", ("loss/*",)),
    Panel("ratio", "Mixture", ("ratio/*",), unit="share"),
    Panel("grad", "Gradient norm", ("grad_norm",)),
    Panel("step-time", "Step time by rank", ("step_time_s",), per_rank=True, unit="s"),
    Panel("tokens", "Throughput", ("tokens_per_s",), unit="tokens/s"),
    Panel("lr", "Learning rate", ("lr",)),
)


def bar() -> list[Any]:
    """Return what the run page puts into the top bar."""
    return [
        html.A("Runs", href="/", className="crumb", id="crumb-runs"),
        html.Span("/", className="crumb-sep"),
        html.Span(id="run-name", className="crumb-here"),
        html.Span(id="run-segment", className="chip"),
        html.Span(id="run-status", className="pill"),
        html.Span(className="grow"),
        html.Span(
            [html.Span("step", className="label"), html.Span(id="run-step", className="value")], className="fact"
        ),
        html.Span(
            [html.Span("elapsed", className="label"), html.Span(id="run-elapsed", className="value")], className="fact"
        ),
        html.Span(id="live-pill", className="pill quiet"),
        html.Button(
            [html.Span(className="icon icon-back"), "Roll back …"],
            id="rollback-open",
            className="button",
            type="button",
            disabled=True,
        ),
    ]


def body() -> list[Any]:
    """Return the regions below the top bar, in the order in which they are read."""
    return [
        html.Div(id="banner", role="alert", hidden=True),
        html.Div(id="command-strip", hidden=True),
        html.Div(id="run-note", hidden=True),
        html.Section([_kpi(kpi) for kpi in KPIS], id="kpis", className="kpis panel", **{"aria-label": "Now"}),
        html.Main(
            [
                html.Div(
                    [
                        _focus(),
                        html.Section([_panel(panel) for panel in PANELS], id="panels", className="panels"),
                        _ranks(),
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
        html.Div(id="run-foot", className="foot"),
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
        **{"data-metric": kpi.metric, "data-good": kpi.good},
    )


def _segmented(id_: str, label: str, options: list[tuple[str, str]]) -> html.Div:
    """Return a row of buttons of which one is on; the first is on at the start."""
    return html.Div(
        [
            html.Button(
                text,
                type="button",
                className="on" if index == 0 else "",
                **{"data-value": value, "aria-pressed": "true" if index == 0 else "false"},
            )
            for index, (value, text) in enumerate(options)
        ],
        id=id_,
        className="segmented",
        role="group",
        **{"aria-label": label},
    )


def _focus() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Effective timeline"),
                    html.Span(id="focus-note", className="sub"),
                    html.Span(className="grow"),
                    html.Div(id="focus-legend", className="legend"),
                    html.Button(
                        "Ghosts", id="focus-ghosts", className="toggle on", type="button", **{"aria-pressed": "true"}
                    ),
                    _segmented("focus-scale", "Loss axis", [("linear", "Linear"), ("log", "Log")]),
                    _segmented(
                        "focus-window",
                        "Newest steps shown",
                        [("0", "All"), ("2000", "2k"), ("500", "500"), ("100", "100")],
                    ),
                    html.Button("Reset zoom", id="zoom-reset", className="toggle", type="button", hidden=True),
                ],
                className="panel-head",
            ),
            html.Div(id="chart-focus", className="chart focus"),
        ],
        className="panel",
        id="focus-panel",
    )


def _panel(panel: Panel) -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H3(panel.title),
                    html.Span(panel.unit, className="sub"),
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


def _incidents() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Incidents"),
                    html.Span(id="incidents-count", className="chip"),
                    html.Span(className="grow"),
                    html.Button("All", id="incidents-all", className="toggle", type="button", hidden=True),
                ],
                className="panel-head",
            ),
            html.Div(id="incidents", className="scroll"),
        ],
        className="panel",
    )


def _lineage() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Lineage"),
                    html.Span(className="grow"),
                    html.Span(id="lineage-note", className="sub"),
                ],
                className="panel-head",
            ),
            html.Div(id="lineage", className="scroll"),
        ],
        className="panel",
    )


def _checkpoints() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Checkpoints"),
                    html.Span(className="grow"),
                    html.Span(id="checkpoints-note", className="sub"),
                ],
                className="panel-head",
            ),
            html.Div(id="checkpoints", className="scroll short"),
        ],
        className="panel",
    )


def _ranks() -> html.Section:
    return html.Section(
        [
            html.Div(
                [
                    html.H2("Ranks and GPUs"),
                    html.Span(id="ranks-note", className="sub"),
                ],
                className="panel-head",
            ),
            html.Div(id="ranks", className="ranks"),
        ],
        className="panel",
        id="ranks-panel",
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
