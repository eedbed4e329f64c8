"""Tools that only read. Each asks the API with its caller's key, and answers little."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from pydantic import Field

from stabilitybackend.base.api_client import ApiClient, run_path
from stabilityplugins.mcp import shortened

__all__ = ["ReadingTools"]

#: Bounds of one call.
MAX_RUNS, MAX_INCIDENTS, MAX_POINTS, MAX_METRICS, MAX_COMPARED = 50, 50, 200, 5, 4
#: Segments and checkpoints that are listed, newest ones.
MAX_SEGMENTS, MAX_CHECKPOINTS = 20, 8
#: Keys of two configs that are listed as different.
MAX_DIFFERENCES = 25

Run = Annotated[str, Field(description="run_id, as list_runs gives it", max_length=200)]


class ReadingTools:
    """Tools that ask.

    Args:
        client: of the server that is asked.
    """

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def list_runs(
        self,
        filter: Annotated[  # its name in the product
            str,
            Field(
                description="Terms separated by spaces, all have to fit. state:sick,crashed, state:well, project:llm, "
                "lr>3e-4, loss<2, age<2h, a word of the name, -term for not. Empty: all runs.",
                max_length=1000,
            ),
        ] = "",
        sort: Annotated[
            str, Field(description="A column, - before it for descending: -updated, loss. Empty: sick first.")
        ] = "",
        columns: Annotated[
            list[str] | None,
            Field(description="Further cells: config.<key> or metric.<name>, up to 8.", max_length=8),
        ] = None,
        limit: Annotated[int, Field(description="At most so many rows.", ge=1, le=MAX_RUNS)] = 15,
    ) -> str:
        """List training runs, those with something wrong first: state, step, loss, open incidents."""
        query: list[tuple[str, Any]] = [("q", filter), ("limit", limit)]
        query += [("sort", sort)] if sort else []
        query += [("column", name) for name in columns or ()]
        found = self._get(f"/api/v1/run_table?{urlencode(query)}")
        return shortened.text({
            "fit": found["fit"], "total": found["total"], "notes": found["notes"],
            "runs": [shortened.run_row(row, columns or ()) for row in found["rows"]],
        })  # fmt: skip

    def run_state(self, run: Run) -> str:
        """Say what one run does now and what is wrong with it: state, note, newest values, open incidents, advice."""
        state = shortened.run_state(self._get(run_path(run)))
        open_ones = self._incidents(run=run, state="open", limit=8)
        offer = self._get(f"{run_path(run)}/rollback")
        return shortened.text({
            **state,
            "open": open_ones["incidents"],
            "rollback_offered": {"to_step": offer["to_step"], "why": offer["text"]},
        })  # fmt: skip

    def incidents(
        self,
        run: Annotated[str | None, Field(description="Only of this run_id; left out: of all runs.")] = None,
        state: Annotated[
            Literal["open", "recovered", "resolved", "any"], Field(description="What they are now.")
        ] = "open",
        kind: Annotated[str | None, Field(description="Only of this kind: spike, nonfinite, hang, crash, ...")] = None,
        limit: Annotated[int, Field(description="At most so many.", ge=1, le=MAX_INCIDENTS)] = 15,
    ) -> str:
        """List incidents (loss spikes, NaN, hangs, crashes, GPU faults, ...): open ones by severity, then newest."""
        return shortened.text(self._incidents(run, state, kind, limit))

    def incident(self, run: Run, incident_id: Annotated[str, Field(max_length=200)]) -> str:
        """Show one incident in depth: its verdict with suspects, the evidence for it, and what is advised."""
        return shortened.text(shortened.incident(self._get(f"{run_path(run)}/incidents/{quote(incident_id, safe='')}")))

    def metric_points(
        self,
        run: Run,
        metric: Annotated[str, Field(description="A metric of the run, for example loss.", max_length=300)],
        around_step: Annotated[
            int | None, Field(description="In the middle of what is shown; left out: the newest steps.", ge=0)
        ] = None,
        span: Annotated[int, Field(description="So many steps in all.", ge=2, le=10_000_000)] = 200,
        max_points: Annotated[int, Field(description="About so many points.", ge=10, le=MAX_POINTS)] = 60,
    ) -> str:
        """Show a metric's values around a step, thinned out: extremes stay. NaN and infinities are said in words."""
        if around_step is None:
            newest = self._get(run_path(run))["last_step"] or 0
            start, stop = max(0, newest - span), newest
        else:
            start, stop = max(0, around_step - span // 2), around_step + span // 2
        # A line asked for 100 points has extremes of about 50 stretches.
        query = {"metric": metric, "start": start, "stop": stop, "rank": "primary", "points": max_points}
        found = self._get(f"{run_path(run)}/series?{urlencode(query)}")
        return shortened.text({"run_id": run, "from_step": start, "to_step": stop,
                               **shortened.points(found, metric)})  # fmt: skip

    def compare_runs(
        self,
        runs: Annotated[list[str], Field(description="Two to four run_ids.", min_length=2, max_length=MAX_COMPARED)],
        metrics: Annotated[list[str], Field(description="Up to five metrics.", min_length=1, max_length=MAX_METRICS)],
        align: Annotated[
            Literal["step", "fork", "time"],
            Field(description="What x is: the step, steps since the newest fork, or seconds since the start."),
        ] = "step",
    ) -> str:
        """Lay runs side by side: last values, values at common steps, and what differs in the first two's configs."""
        query = [("run", one) for one in runs] + [("metric", one) for one in metrics]
        query += [("align", align), ("points", str(MAX_POINTS))]
        found = self._get(f"/api/v1/compare?{urlencode(query)}")
        about = self._get(f"{run_path(runs[1])}/about?{urlencode({'against': runs[0]})}")
        diff = about.get("diff") or {}
        return shortened.text({
            "x": align,
            "metrics": shortened.compared(found, metrics),
            "differences": [
                {"name": one["name"], runs[0]: one["before"], runs[1]: one["now"]}
                for one in [*diff.get("config", ()), *diff.get("facts", ())][:MAX_DIFFERENCES]
            ],
        })  # fmt: skip

    def lineage(self, run: Run) -> str:
        """Show the run's history: each start, rollback and restart with its reason, and the newest checkpoints."""
        tree = self._get(f"{run_path(run)}/segments")
        checkpoints = self._get(f"{run_path(run)}/checkpoints")["checkpoints"]
        return shortened.text({
            "head_segment": tree["head"],
            "segments_in_all": len(tree["segments"]),
            "segments": [shortened.segment(one) for one in tree["segments"][-MAX_SEGMENTS:]],
            "checkpoints_in_all": len(checkpoints),
            "newest_checkpoints": [
                shortened.checkpoint(one) | {"available": one["available"], "discarded": one["dead"]}
                for one in checkpoints[:MAX_CHECKPOINTS]
            ],
        })  # fmt: skip

    def rollback_offer(
        self,
        run: Run,
        incident_id: Annotated[
            str | None, Field(description="The incident to roll back for; left out: what is open now.")
        ] = None,
    ) -> str:
        """Show the rollback that the server offers now: to which checkpoint, what to skip or change, and why."""
        query = f"?{urlencode({'incident': incident_id})}" if incident_id else ""
        offer = self._get(f"{run_path(run)}/rollback{query}")
        names = ("incident_id", "onset_step", "to_step", "skip_batches", "skip_range", "lr_scale", "reseed", "cannot")
        return shortened.text({
            **{name: offer[name] for name in names},
            "why": offer["text"],
            "checkpoints": [shortened.checkpoint(one) for one in offer["checkpoints"][:MAX_CHECKPOINTS]],
            "not_offered": [shortened.checkpoint(one) for one in offer["withheld"][:MAX_CHECKPOINTS]],
        })  # fmt: skip

    def _incidents(
        self, run: str | None = None, state: str = "any", kind: str | None = None, limit: int = MAX_INCIDENTS
    ) -> dict[str, Any]:
        query = {"run": run, "state": None if state == "any" else state, "kind": kind, "limit": limit}
        found = self._get(f"/api/v1/incidents?{urlencode({name: v for name, v in query.items() if v is not None})}")
        counts = found["counts"]
        return {
            "incidents": [shortened.listed_incident(one) for one in found["incidents"]],
            "counts": {name: counts[name] for name in ("open", "critical", "warning", "info", "unacknowledged")},
            "more": found["next"] is not None,
        }

    def _get(self, path: str) -> Any:
        return self._client.get(path)
