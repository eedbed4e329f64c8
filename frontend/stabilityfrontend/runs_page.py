"""The skeletons of the list of runs, of the page where a key is pasted, and of an address that means nothing."""

from __future__ import annotations

from dash import html

from stabilityfrontend.controls import frame, more_panels
from stabilityfrontend.declared import page

__all__ = ["login_page", "missing_page", "runs_page"]


@page("/", name="Runs", order=0, live="runs")
@page("/runs", name="Runs", live="runs")
def runs_page() -> html.Div:
    """Return the table of runs: places that the script fills (assets/runs/)."""
    tools = [
        # The field itself is made by the script: what is typed in it is of no interest to Dash.
        html.Div(id="runs-search"),
        html.Div(id="runs-tools"),
        html.Span(className="grow"),
        html.Div(id="runs-compare"),
    ]
    heads = html.Thead(html.Tr(id="runs-heads"))
    table = html.Table([heads, html.Tbody(id="runs-body")], className="table run-table", id="runs-table")
    panel = [
        html.Div(id="runs-states", role="group", **{"aria-label": "Runs by state"}),
        html.Div(tools, className="panel-head", id="runs-head", hidden=True),
        html.Div(id="runs-trouble", className="note critical", role="alert", hidden=True),
        html.Div(id="runs-notes", className="note warning", role="status", hidden=True),
        html.Div(table, id="runs-scroll", hidden=True, tabIndex="-1"),
        html.Div(html.Span(id="runs-shown", className="sub"), id="runs-more", className="runs-more", hidden=True),
        html.Div(id="runs-empty", hidden=True),
    ]
    bar = [
        html.H1("Runs", className="crumb-here"),
        html.Span(id="runs-count", className="chip"),
        html.Span(className="grow"),
        html.Span(id="live-pill", className="pill quiet"),
    ]
    main = html.Main([html.Section(panel, className="panel runs-panel"), more_panels()], className="list all-runs")
    return frame(bar, main)


@page("/login", name="Login", live="login")
def login_page() -> html.Div:
    """Return the page where an API key is pasted, or a person goes to sign in."""
    return html.Div(
        html.Main(
            html.Form(
                [
                    html.H1([html.Span(className="mark"), html.Span("Stabilityboard")], className="login-brand"),
                    html.P("This board asks who you are. Whoever runs it makes keys with “stabilityboard keys”."),
                    # The button of a provider where people sign in; the script asks whether there is one.
                    html.Div(id="login-oidc"),
                    html.Label("API key", htmlFor="login-key"),
                    # Made by the script, so that a key never becomes a property of a component.
                    html.Div(id="login-field"),
                    html.Div(id="login-error", role="alert"),
                    html.Button("Open the board", id="login-send", className="button primary", type="submit"),
                ],
                id="login-form",
                className="panel login",
            ),
        ),
        className="page centre",
    )


def missing_page() -> html.Div:
    """Return the page of an address that means nothing here."""
    words = [
        html.H1("Page not found"),
        html.P("Nothing of this board is at this address. The run may be deleted, or the link cut off."),
        html.P(["Search for it with ", html.Kbd("Ctrl K"), ", or go to ", html.A("all runs", href="/"), "."]),
    ]
    return frame([html.Span(className="grow")], html.Main(html.Div(words, className="empty panel"), className="list"))
