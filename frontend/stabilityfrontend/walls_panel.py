"""The walls of ranks and GPUs on the run page, filled by ``rank_grid.js`` and ``gpu_map.js`` of ``assets/ranks/``."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import panel_head, segmented

__all__ = ["GPU_FIELDS", "panel"]

#: What the wall of GPUs can show; ``assets/ranks/gpu_map.js`` knows how.
GPU_FIELDS = (
    ("util", "Load"),
    ("memory", "Memory"),
    ("temp", "Temperature"),
    ("power", "Power"),
    ("throttle", "Throttling"),
    ("ecc", "ECC"),
)


def panel() -> html.Div:
    """Return the walls of ranks and GPUs: the same nodes at the same places, side by side where there is room."""
    ranks = html.Section(
        [
            panel_head(
                "Ranks",
                html.Span(id="ranks-note", className="sub"),
                html.Span(className="grow"),
                segmented("ranks-order", "Order", [("node", "By node"), ("worst", "Worst first")]),
                segmented(
                    "ranks-color",
                    "Colour by",
                    [("state", "State"), ("phase", "Phase"), ("lag", "Step lag"), ("age", "Age")],
                ),
            ),
            html.P(id="ranks-summary", className="ranks-summary", hidden=True),
            html.Div(id="ranks", className="cell-map"),
            html.Div(id="ranks-legend", className="cell-legend"),
            html.Div(id="blind", className="blind", hidden=True),
        ],
        className="panel",
        id="ranks-panel",
    )
    gpus = html.Section(
        [
            panel_head(
                "GPUs",
                html.Span(id="gpus-note", className="sub"),
                html.Span(className="grow"),
                segmented("gpus-field", "What is shown", list(GPU_FIELDS)),
            ),
            html.P(id="gpus-summary", className="ranks-summary", hidden=True),
            html.Div(id="gpus", className="cell-map"),
            html.Div(id="gpus-legend", className="cell-legend"),
            html.Div(id="gpus-none", className="gpus-none"),
        ],
        className="panel",
        id="gpus-panel",
        hidden=True,
    )
    return html.Div([ranks, gpus], className="walls", id="walls")
