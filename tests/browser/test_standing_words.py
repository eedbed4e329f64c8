"""What the pages say of a job that stands: the note under the header, whom a dump tells of, what a restart offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from browser.test_incident_words import STAGE, VERDICT, dump, incident, show

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize(
    ("plan", "agents", "offered"),
    [({}, ["n1"], []), ({"exclude_nodes": ["n1"]}, ["n1"], ["n1"]), ({}, ["n1", "n2"], ["n1", "n2"])],
)
def test_the_only_node_of_a_job_is_left_out_by_the_plan_alone(
    pages: Page, plan: dict[str, Any], agents: list[str], offered: list[str]
) -> None:
    boxes = pages.evaluate(
        f"""async ([plan, nodes]) => {{ {STAGE}
          S.api.plan = async () => ({{ text: "Start again.", ...plan }});
          const agents = nodes.map((node) => ({{ node }}));
          const page = {{ ...pageOf({{ title: "t" }}), agents, checkpointList: () => [], lastStep: () => 8 }};
          const dialog = new S.RestartDialog(page);
          await dialog.show();
          const boxes = dialog.boxes.map((box) => box.value);
          const fieldset = Boolean(dialog.dialog.querySelector("fieldset"));
          dialog.destroy();
          return [boxes, fieldset]; }}""",
        [plan, agents],
    )
    assert boxes == [offered, bool(offered)]


@pytest.mark.parametrize(("coarse", "focused"), [(True, "restart-title"), (False, "restart-typed")])
def test_on_a_touch_screen_the_restart_begins_at_its_heading(pages: Page, coarse: bool, focused: str) -> None:
    found = pages.evaluate(
        f"""async (coarse) => {{ {STAGE}
          const asked = window.matchMedia;
          window.matchMedia = (query) => ({{ matches: coarse && query === "(pointer: coarse)" }});
          S.api.plan = async () => ({{ text: "Start again." }});
          const dialog = new S.RestartDialog({{ ...pageOf({{}}), checkpointList: () => [], lastStep: () => 8 }});
          await dialog.show();
          const found = document.activeElement.id;
          dialog.destroy();
          window.matchMedia = asked;
          return found; }}""",
        coarse,
    )
    assert found == focused


@pytest.mark.parametrize("decided_after_s", [0.0, 23.9, 24.0, 31.0])
def test_a_verdict_never_stands_before_what_it_is_about_was_seen(pages: Page, decided_after_s: float) -> None:
    one = incident(kind="process_death", evidence={"verdict": VERDICT | {"decided_after_s": decided_after_s}})
    words = pages.evaluate("(one) => stability.timelineOf(one, null, []).map((entry) => entry.words)", one)
    assert [word.split(":")[0].split(",")[0] for word in words] == ["The process ended", "Seen", "Verdict"]


@pytest.mark.parametrize(
    ("collective", "said"),
    [
        ({"pg": "default_pg", "joined": [0, 1], "missing": [3]}, "rank 3; not known: rank 2"),
        ({"pg": "default_pg", "joined": [0, 1, 3], "missing": []}, "not known: rank 2"),
        ({"pg": "default_pg", "joined": [0, 1, 2, 3], "missing": []}, "none"),
        ({"pg": "tp", "joined": [0, 1], "missing": [], "unknown": [2, 3]}, "not known: ranks 2, 3"),
        ({"pg": "tp", "joined": [0, 1], "missing": []}, "none"),
    ],
)
def test_who_has_not_told_whether_it_came_is_not_said_to_have_come(
    pages: Page, collective: dict[str, Any], said: str
) -> None:
    show(pages, incident(), dump(4, [], collectives=[{"seq": 7, "op": "all_reduce"} | collective]))
    assert pages.inner_text(".collectives td:last-child") == said


@pytest.mark.parametrize(
    ("order", "asked"),
    [
        ({"state": "delivered", "nodes": {"a": {"state": "failed"}}}, []),
        ({"state": "failed", "nodes": {"a": {"state": "failed"}}}, ["/stacks"]),
        ({"state": "done", "nodes": {"a": {"state": "acted"}}}, ["/stacks/d"]),
        (None, ["/stacks"]),
    ],
)
def test_a_dump_that_may_not_be_there_is_looked_for_among_those_that_are(
    pages: Page, order: dict[str, Any] | None, asked: list[str]
) -> None:
    """When no node is known to have looked, the list of dumps is asked, which has no answer that is an error."""
    paths = pages.evaluate(
        f"""async ([incident, order]) => {{ {STAGE}
          const paths = [];
          const fetched = window.fetch;
          window.fetch = async (path) => {{
            paths.push(String(path).replace(/^.*(?=[/]stacks)/, ""));
            return new Response('{{"dumps": []}}', {{ headers: {{ "content-type": "application/json" }} }});
          }};
          const page = Object.assign(Object.create(S.IncidentPage.prototype), {{
            id: "r", incident, commands: new Map(), dumps: new Map(), chosen: null, now: () => 2000, draw() {{}},
          }});
          if (order) page.commands.set("d", {{ command_id: "d", kind: "dump_stacks", issued: 1950, ...order }});
          await page.fetchDump();
          page.gone = true;
          clearTimeout(page.dumpAgain);
          window.fetch = fetched;
          return paths; }}""",
        [incident(evidence={"verdict": VERDICT}), order],
    )
    assert paths == asked


NOTE = """([run, incidents]) => {
  const page = (note) => ({ ...run, run_id: "r 1", note });
  return stability.noteOf(page(run.note), incidents);
}"""
DOUBLES = "Two living processes say that they are rank 0 of this run (pid 1 and pid 2)."


@pytest.mark.parametrize(
    ("status", "note", "open_", "tone", "leads_to"),
    [
        ("stalled", "Rank 1 has not come.", ["agent_lost", "hang", "spike"], "warning", "hang"),
        ("crashed", "Rank 1 is gone.", ["hang", "process_death"], "critical", "process_death"),
        ("unreachable", "We see nothing.", ["hang", "agent_lost"], "warning", "agent_lost"),
        ("stalled", "Rank 1 has not come.", ["spike", "straggler"], "warning", None),
        ("running", DOUBLES, ["hang"], "warning", None),
        ("finished", DOUBLES, [], "warning", None),
        ("crashed", DOUBLES, [], "critical", None),
    ],
)
def test_the_note_leads_to_the_incident_that_stops_the_job(
    pages: Page, status: str, note: str, open_: list[str], tone: str, leads_to: str | None
) -> None:
    incidents = [incident(kind=kind, incident_id=kind) for kind in open_]
    incidents.append(incident(kind="hang", incident_id="over", state="resolved", opened=1999.0))
    found = pages.evaluate(NOTE, [{"status": status, "note": note}, incidents])
    assert found == {"words": note, "tone": tone, "href": leads_to and f"/runs/r%201/incidents/{leads_to}"}


@pytest.mark.parametrize("note", ["", "In eval."])
def test_of_a_run_that_is_well_a_note_stays_under_the_pointer(pages: Page, note: str) -> None:
    assert pages.evaluate(NOTE, [{"status": "running", "note": note}, []]) is None
