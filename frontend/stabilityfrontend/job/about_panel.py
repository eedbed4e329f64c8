"""The skeleton of the run page's panel of what a run is: folded line, overview, config, and what changed."""

from __future__ import annotations

from dash import html

__all__ = ["panel"]


def panel() -> html.Section:
    """Return the panel, folded; ``assets/run/about.js`` fills it."""
    fold = html.Button(
        [html.Span(className="icon icon-fold"), "About this run"],
        id="about-fold",
        className="fold",
        type="button",
        **{"aria-expanded": "false", "aria-controls": "about-body"},
    )
    head = [fold, html.Div(id="about-line", className="about-line")]
    return html.Section(
        [html.Div(head, className="panel-head"), html.Div(id="about-body", className="about-body", hidden=True)],
        className="panel",
        id="about-panel",
        # A server that knows nothing of it shows none.
        hidden=True,
    )
