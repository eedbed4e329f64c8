"""The skeleton of the page of alerting: receivers, mutes, routes, who would get an incident, precision."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import frame, more_panels, panel_head
from stabilityfrontend.declared import page

__all__ = ["skeleton"]


@page("/alerting", name="Alerting", order=15, live="alerting")
def skeleton() -> html.Div:
    """Return the page."""
    bar = [
        html.H1("Alerting", className="crumb-here"),
        html.Span(id="alerting-state", className="chip"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]
    panels = [
        _panel("receivers", "Receivers", "Where alerts go, and what became of them since the server started"),
        _panel("mutes", "Mutes", "Nobody is alerted of what fits, until the end; what is still open then is sent"),
        _panel("routes", "Routes", "The first route that fits decides who gets an incident"),
        _panel("preview", "Who would get this?", "What would happen if this incident opened now"),
        _panel("precision", "Precision", "Alerts of the last 30 days, as people rated them on the incidents' pages"),
    ]
    trouble = html.Div(id="alerting-trouble", className="note critical", role="alert", hidden=True)
    return frame(bar, html.Main([trouble, *panels, more_panels()], className="list stack"))


def _panel(name: str, title: str, note: str) -> html.Section:
    tools = html.Div(id=f"{name}-tools")
    head = panel_head(title, html.Span(note, className="sub"), html.Span(className="grow"), tools)
    body = html.Div(id=f"alerting-{name}", className="alerting-body")
    return html.Section([head, body], className="panel", **{"aria-label": title})
