"""The skeleton of the run page's panel of metrics: which are watched as what and why, and which are not."""

from __future__ import annotations

from dash import html

__all__ = ["panel"]


def panel() -> html.Section:
    """Return the panel, folded; ``assets/run/watched.js`` fills it."""
    fold = html.Button(
        [html.Span(className="icon icon-fold"), "Watched"],
        id="watched-fold",
        className="fold",
        type="button",
        **{"aria-expanded": "false", "aria-controls": "watched-body"},
    )
    return html.Section(
        [
            html.Div([fold, html.Span(id="watched-note", className="sub")], className="panel-head"),
            html.Div(id="watched-body", hidden=True),
        ],
        className="panel",
        id="watched-panel",
        # A server that knows nothing of it shows none.
        hidden=True,
    )
