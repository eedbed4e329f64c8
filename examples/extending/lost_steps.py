"""A page and a panel: which steps rollbacks discarded."""

import plotly.graph_objects as go
from dash import html

from stabilitybackend.hooks import hook
from stabilityfrontend.extend import Api, Cell, Column, Theme, page, panel, table


@page("/lost-steps", name="Lost steps", order=20)
def lost_steps(api: Api) -> html.Section:
    rows = []
    for run in api.get("/runs")["runs"]:
        name = Cell(run["name"], href=f"/runs/{run['run_id']}", sub=run["project"])
        rows.append({"id": run["run_id"], "run": name, "step": run["last_step"], "lost": run["dead_points"]})
    columns = [
        Column("run", "Run", grow=3),
        Column("step", "Step", number=True),
        Column("lost", "Discarded points", number=True, tip="Points of steps that a rollback cut off."),
    ]
    return html.Section(table(rows, columns, key="id"), className="panel")


@panel(page="/runs/{run}", title="Steps by segment")
def segments(run: str, api: Api, theme: Theme) -> go.Figure:
    found = api.get("/runs/{run_id}/segments", run_id=run)["segments"]
    names = [one["label"] or f"segment {one['id']}" for one in found]
    figure = go.Figure()
    figure.add_bar(x=names, y=[one["kept"] for one in found], name="kept", marker_color=theme.colors["good"])
    figure.add_bar(x=names, y=[one["discarded"] for one in found], name="discarded", marker_color=theme.colors["ghost"])
    return figure.update_layout(barmode="stack", height=240, yaxis_title="steps", showlegend=True)


@hook
def pages() -> list[object]:
    return [lost_steps, segments]
