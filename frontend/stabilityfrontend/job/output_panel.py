"""The skeleton of the run page's panel of what the ranks print."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import segmented

__all__ = ["panel"]


def panel() -> html.Section:
    """Return the panel, folded; ``assets/run/output.js`` fills it."""
    fold = html.Button(
        [html.Span(className="icon icon-fold"), "Output"],
        id="output-fold",
        className="fold",
        type="button",
        **{"aria-expanded": "false", "aria-controls": "output-body"},
    )
    tools = [
        html.Div(id="output-rank", className="tool"),
        segmented("output-stream", "Which stream", [("", "Both"), ("out", "stdout"), ("err", "stderr")]),
        html.Button("Live", id="output-live", className="toggle on", type="button", **{"aria-pressed": "true"}),
    ]
    head = [fold, html.Span(id="output-note", className="sub"), html.Span(className="grow")]
    return html.Section(
        [
            html.Div([*head, html.Div(tools, id="output-tools", hidden=True)], className="panel-head"),
            html.Div(
                html.Ol(id="output-lines", tabIndex="0", **{"aria-label": "Lines that the rank printed"}),
                id="output-body",
                hidden=True,
            ),
        ],
        className="panel",
        id="output-panel",
        # Until a line came, and for whoever may not read them, there is none.
        hidden=True,
    )
