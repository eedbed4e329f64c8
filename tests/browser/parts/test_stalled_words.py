"""What the pages say of a job that stands: the note under the header, whom a dump tells of, what a restart offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from browser.pages.test_incident_words import STAGE, VERDICT, dump, incident, show

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
          S.api.plan = async () => ({{ text: "Start again.", exclude_nodes: [], suspects: [], ...plan }});
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


INSIDE = {"incident_id": "i-1", "kind": "spike", "onset_step": 220, "text": "saved 30 steps after the onset of a spike"}


def test_a_restart_from_inside_an_open_incident_takes_one_more_click(pages: Page) -> None:
    seen = pages.evaluate(
        f"""async (inside) => {{ {STAGE}
          const saved = (step, found) => ({{ step, path: "c", time: 1, available: true, dead: false, inside: found }});
          const checkpoint = {{ step: 250, path: "c", inside }};
          S.api.plan = async () => ({{ text: "Start again.", exclude_nodes: [], suspects: [], checkpoint }});
          const list = [saved(250, inside), saved(200, null)];
          const page = {{ ...pageOf({{ title: "t" }}), checkpointList: () => list, lastStep: () => 269 }};
          const dialog = new S.RestartDialog(page);
          await dialog.show();
          const accepts = () => dialog.order().accept_inside_incident ?? null;
          const look = () => [dialog.inside.hidden, dialog.confirm.disabled, accepts()];
          dialog.typed.value = "restart";
          dialog.update();
          const seen = [look()];
          dialog.accept.click();
          seen.push(look());
          dialog.step.value = "200";
          dialog.step.dispatchEvent(new Event("change"));
          seen.push(look());
          dialog.step.value = "250";
          dialog.step.dispatchEvent(new Event("change"));
          seen.push(look(), dialog.insideWords.textContent);
          dialog.destroy();
          return seen; }}""",
        INSIDE,
    )
    words = "This checkpoint was saved 30 steps after the onset of a spike. Go on from it all the same."
    assert seen == [
        [False, True, None],
        [False, False, True],
        [True, False, None],
        [False, True, None],
        words,
    ]


@pytest.mark.parametrize(("coarse", "focused"), [(True, "restart-title"), (False, "restart-typed")])
def test_on_a_touch_screen_the_restart_begins_at_its_heading(pages: Page, coarse: bool, focused: str) -> None:
    found = pages.evaluate(
        f"""async (coarse) => {{ {STAGE}
          const asked = window.matchMedia;
          window.matchMedia = (query) => ({{ matches: coarse && query === "(pointer: coarse)" }});
          S.api.plan = async () => ({{ text: "Start again.", exclude_nodes: [], suspects: [] }});
          const page = {{ ...pageOf({{ title: "t" }}), checkpointList: () => [], lastStep: () => 8 }};
          const dialog = new S.RestartDialog(page);
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
    assert [word.split(":")[0].split(",")[0] for word in words] == ["The process ended", "Detected", "Verdict"]


@pytest.mark.parametrize(
    ("collective", "said"),
    [
        ({"pg": "default_pg", "joined": [0, 1], "missing": [3], "unknown": [2]}, "rank 3; not known: rank 2"),
        ({"pg": "default_pg", "joined": [0, 1, 3], "missing": [], "unknown": [2]}, "not known: rank 2"),
        ({"pg": "default_pg", "joined": [0, 1, 2, 3], "missing": [], "unknown": []}, "none"),
        ({"pg": "tp", "joined": [0, 1], "missing": [], "unknown": [2, 3]}, "not known: ranks 2, 3"),
        ({"pg": "tp", "joined": [0, 1], "missing": [], "unknown": []}, "none"),
    ],
)
def test_who_has_not_told_whether_it_came_is_not_said_to_have_come(
    pages: Page, collective: dict[str, Any], said: str
) -> None:
    show(pages, incident(), dump(4, [], collectives=[{"seq": 7, "op": "all_reduce"} | collective]))
    assert pages.inner_text(".collectives td:last-child") == said


@pytest.mark.parametrize(
    ("progress", "asked"),
    [
        ({"acted": 0, "ended": False}, []),
        ({"acted": 0, "ended": True}, ["/stacks"]),
        ({"acted": 1, "ended": True}, ["/stacks/d"]),
        (None, ["/stacks"]),
    ],
)
def test_a_dump_that_may_not_be_there_is_looked_for_among_those_that_are(
    pages: Page, progress: dict[str, Any] | None, asked: list[str]
) -> None:
    """When no node is known to have looked, the list of dumps is asked, which has no answer that is an error."""
    paths = pages.evaluate(
        f"""async ([incident, progress]) => {{ {STAGE}
          const paths = [];
          const fetched = window.fetch;
          window.fetch = async (path) => {{
            paths.push(String(path).replace(/^.*(?=[/]stacks)/, ""));
            return new Response('{{"dumps": []}}', {{ headers: {{ "content-type": "application/json" }} }});
          }};
          const page = Object.assign(Object.create(S.IncidentPage.prototype), {{
            id: "r", incident, commands: new Map(), dumps: new Map(), chosen: null, now: () => 2000, draw() {{}},
          }});
          if (progress) page.commands.set("d", {{ command_id: "d", kind: "dump_stacks", issued: 1950, progress }});
          await page.fetchDump();
          page.gone = true;
          clearTimeout(page.dumpAgain);
          window.fetch = fetched;
          return paths; }}""",
        [incident(evidence={"verdict": VERDICT}), progress],
    )
    assert paths == asked


#: As the server tells a hang: its text, and the text in pieces with since when for each "for how long".
LASTING = VERDICT | {
    "text": "Rank 5 is in data for 74 s; the other 7 wait in backward for 70 s.",
    "parts": ["Rank 5 is in data for ", 1926.0, "; the other 7 wait in backward for ", 1930.0, "."],
}
HANG = incident(text=f"{LASTING['text']} A step takes 2 s.", evidence={"verdict": LASTING})
STALLED = {"status": "stalled", "note_incident": HANG["incident_id"]}
#: Draws at two moments and returns what stands there; `Drawn` draws into the page what is given to it.
TWICE = f"""([incident, run, words]) => {{ {STAGE}
  const page = {{ ...pageOf(incident), run: {{ run_id: "r 1", ...run }}, incidents: () => [incident] }};
  Object.assign(page, {{ detectors: {{ list: [], of: () => null }}, config: {{}} }});
  document.body.innerHTML += '<div id="run-note"></div><div id="incidents"></div>';
  const said = [2000, 5600].map((now) => {{
    page.now = () => now;
    S.drawIncidentTop(page);
    S.drawIncidents(page, false);
    S.drawNote(page, page.run);
    return words.map((place) => document.querySelector(place)?.textContent);
  }});
  S.forgetRail();
  return said; }}"""
PLACES = [".verdict-words", ".verdict-line", "#run-note span", "#run-note"]


def _said(pages: Page, one: dict[str, Any], note: str, places: list[str]) -> list[list[str]]:
    found: list[list[str]] = pages.evaluate(TWICE, [one, STALLED | {"note": note}, places])
    return found


def test_a_hang_says_everywhere_how_long_it_lasts_by_now_and_not_when_it_was_told(pages: Page) -> None:
    at_once = "Rank 5 is in data for 1 min 14 s; the other 7 wait in backward for 1 min 10 s."
    an_hour_later = "Rank 5 is in data for 1 h 01 min; the other 7 wait in backward for 1 h 01 min."
    said = _said(pages, HANG, f"{HANG['text']} So do 2 more.", PLACES[:3])
    assert said == [[words, words, f"{words} A step takes 2 s. So do 2 more."] for words in (at_once, an_hour_later)]


def test_what_lasts_counts_on_in_its_place_and_a_link_keeps_its_focus(pages: Page) -> None:
    found = pages.evaluate(
        f"""([incident, run]) => {{ {STAGE}
          const detectors = {{ list: [], of: () => null }};
          const page = {{ ...pageOf(incident), incidents: () => [incident], detectors, config: {{}} }};
          document.body.innerHTML += '<div id="run-note"></div><div id="incidents"></div>';
          const lasting = (now) => {{
            page.now = () => now;
            S.drawIncidents(page, false);
            S.drawNote(page, {{ run_id: "r 1", ...run }});
            return [...document.querySelectorAll(".lasts")];
          }};
          const before = lasting(2000);
          document.querySelector("#run-note a").focus();
          const after = lasting(2001);
          S.forgetRail();
          const same = after.every((part, at) => part === before[at] && part.getAttribute("aria-live") === "off");
          const focus = document.activeElement === document.querySelector("#run-note a");
          return [same, focus, after.map((part) => part.textContent)]; }}""",
        [HANG | {"opened": -90_000.0}, STALLED | {"note": HANG["text"]}],
    )
    assert found == [True, True, ["1 min 15 s", "1 min 11 s"] * 2]


def test_a_note_that_comes_before_its_incident_counts_on_when_that_is_there(pages: Page) -> None:
    said = pages.evaluate(
        f"""([early, incident, run]) => {{ {STAGE}
          document.body.innerHTML += '<div id="run-note"></div>';
          return [early, incident].map((one) => {{
            S.drawNote({{ now: () => 2010, incidents: () => [one] }}, {{ run_id: "r 1", ...run }});
            return document.querySelector("#run-note span").textContent;
          }}); }}""",
        [incident(), HANG | {"version": 2}, STALLED | {"note": LASTING["text"]}],
    )
    assert said == [LASTING["text"], "Rank 5 is in data for 1 min 24 s; the other 7 wait in backward for 1 min 20 s."]


@pytest.mark.parametrize(
    "one",
    [
        incident(evidence={"verdict": {**LASTING, "parts": []}}),
        incident(evidence={"verdict": {**LASTING, "parts": {"a": 1}}}),
        incident(evidence={"verdict": {name: value for name, value in LASTING.items() if name != "parts"}}),
    ],
    ids=["no pieces", "nonsense", "an older server"],
)
def test_what_has_no_beginning_to_count_from_stays_as_it_was_told(pages: Page, one: dict[str, Any]) -> None:
    assert _said(pages, one, "The job stands.", PLACES[:2]) == [[LASTING["text"]] * 2] * 2


@pytest.mark.parametrize(
    ("statuses", "said"),
    [
        ({"incident": 404, "run": 0}, "No incident has this id"),
        ({"incident": 404, "run": 404}, "No run has this id"),
        ({"incident": 422, "run": 422}, "No run has this id"),
        ({"incident": 404, "run": 503}, "No incident has this id"),
    ],
)
def test_whether_the_run_or_the_incident_is_missing_is_what_the_runs_own_answer_says(
    pages: Page, statuses: dict[str, int], said: str
) -> None:
    heading = pages.evaluate(
        f"""async (statuses) => {{ {STAGE}
          document.body.innerHTML += '<div id="incident-main"></div><div id="incident-empty"></div>';
          const answer = async (what) => {{
            if (statuses[what]) throw Object.assign(new Error("in any words"), {{ status: statuses[what] }});
            return {{}};
          }};
          const asked = {{ ...S.api }};
          for (const what of ["incident", "run", "commands", "checkpoints", "health"]) S.api[what] = () => answer(what);
          const page = Object.create(S.IncidentPage.prototype);
          Object.assign(page, {{ id: "r", incidentId: "i", draw() {{}} }});
          await page.fetch();
          clearTimeout(page.again);
          Object.assign(S.api, asked);
          return document.querySelector("#incident-empty :is(h1, h2)").textContent; }}""",
        statuses,
    )
    assert heading == said


def test_the_durations_of_a_hang_that_is_over_end_with_it(pages: Page) -> None:
    one = incident(text=LASTING["text"], state="resolved", resolved=1999.0, evidence={"verdict": LASTING})
    assert (
        _said(pages, one, LASTING["text"], PLACES[:1])
        == [["Rank 5 was in data for 1 min 13 s; the other 7 waited in backward for 1 min 09 s."]] * 2
    )
