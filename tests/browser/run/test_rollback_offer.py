"""One rollback suggestion wherever a rollback can be ordered; a checkpoint from inside a spike needs one more click."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stabilityclient.wire import SourceInfo
from support.gateway_stack import RawAgent, log_frames
from support.job_frames import Job
from support.jobs.piloted_job import stuck
from support.processes import Ranks
from support.waiting import wait_in

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from browser.run.conftest import Visit
    from support.processes import Server

JOB = str(Path(__file__).parents[1] / "jobs" / "spoilt_job.py")
PHONE = {"width": 390, "height": 844}
#: What the dialog is about to order.
FORM = """() => ({
  step: document.querySelector(".choice input:checked")?.value ?? null,
  skip: document.getElementById("rollback-skip").value,
  marked: [...document.querySelectorAll(".choice.late input")].map((one) => one.value),
  suggested: [...document.querySelectorAll(".choice:has(.chip.accent) input")].map((one) => one.value),
})"""


class Spoilt:
    """A job on a server that stands at step 270 in a spike that began at step 220, with checkpoints 200 and 250."""

    def __init__(self, server: Server, folder: Path, run: str) -> None:
        self.server = server
        self.folder = folder
        self.run = run
        self.path = f"/runs/{run}"
        opened = server.wait_for(
            f"/runs/{run}/incidents",
            lambda answer: [one for one in answer["incidents"] if one["kind"] == "spike" and one["state"] == "open"],
            "the spike is open",
            60,
        )
        server.wait_for(f"/runs/{run}", lambda facts: facts["last_step"] == 269, "it stands")
        self.spike = next(one["incident_id"] for one in opened["incidents"] if one["kind"] == "spike")


def started(server: Server, folder: Path, *checkpoints: int) -> Iterator[Spoilt]:
    run, steps = f"r-{folder.name}"[:60], [str(step) for step in (220, 270, *checkpoints)]
    job = {"folder": folder / "spool", "run_id": run, "world_size": 1, "STABILITY_DRAIN_S": "10"}
    with Ranks(JOB, [str(folder), *steps], url=server.url, **job):
        yield Spoilt(server, folder, run)


@pytest.fixture(scope="module")
def spoilt(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Spoilt]:
    """For tests that order nothing."""
    yield from started(server, tmp_path_factory.mktemp("spoilt"), 200, 250)


@pytest.fixture
def own(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Spoilt]:
    """For a test that orders something; its checkpoints are the parameter, 200 and 250 where there is none."""
    yield from started(server, tmp_path, *getattr(request, "param", (200, 250)))


@pytest.mark.parametrize(
    "size", [pytest.param({"width": 1280}, id="desk"), pytest.param(PHONE, id="phone", marks=pytest.mark.soak)]
)
def test_every_button_offers_the_same_checkpoint_and_the_same_skip(
    spoilt: Spoilt, visit: Visit, size: dict[str, int]
) -> None:
    page = visit(spoilt.path, **size)
    header, card = "#rollback-open:not([disabled])", f'#incidents [data-rollback="{spoilt.spike}"]'
    for button in (header, card, "#incident-rollback"):
        if button == "#incident-rollback":
            visit(f"{spoilt.path}/incidents/{spoilt.spike}", **size)
        page.click(button)
        page.wait_for_selector("#rollback-confirm:not([disabled])")
        assert page.is_disabled("#rollback-lr")  # the job says that it can skip batches, and no more
        assert "does not say that it changes the learning rate" in page.inner_text("#rollback-cannot")
        why = (
            "The checkpoint of step 200 is from before the open spike at step 220; the batches behind it are left out."
        )
        assert (page.text_content("#rollback-why"), page.get_attribute("#rollback-why", "class")) == (why, "sub")
        assert page.evaluate(FORM) == {"step": "200", "skip": "220-320", "marked": ["250"], "suggested": ["200"]}
        page.keyboard.press("Escape")
        page.wait_for_selector("#rollback-confirm", state="hidden")


@pytest.mark.soak
def test_on_a_phone_a_checkpoints_step_is_one_line_and_nothing_lies_over_it(spoilt: Spoilt, visit: Visit) -> None:
    page = visit(spoilt.path, **PHONE)
    page.click("#rollback-open:not([disabled])")
    page.wait_for_selector("#rollback-confirm:not([disabled])")
    covered = """(all) => all.flatMap((row) => {
      const box = row.getBoundingClientRect();
      const parts = [...row.children].map((one) => one.getBoundingClientRect()).filter((one) => one.width);
      const over = parts.some((a, at) => parts.slice(at + 1).some((b) => a.right > b.left + 1 && b.right > a.left + 1
        && a.bottom > b.top + 1 && b.bottom > a.top + 1));
      const out = parts.some((one) => one.top < box.top || one.bottom > box.bottom || one.right > box.right);
      const lines = row.querySelector(".choice-step").getBoundingClientRect().height > 26;
      return over || out || lines ? [row.innerText] : [];
    })"""
    assert page.locator(".choice").evaluate_all(covered) == []


def test_a_job_without_a_handler_is_offered_no_rollback_and_says_why(server: Server, visit: Visit) -> None:
    job = Job()
    loss = [stuck(220)(step) for step in range(1, 281)]
    frames = [job.event("start", says_orders=True), job.event("checkpoint", 0, path="c/0")]
    log_frames(server.url, *frames, job.rows(range(1, 281), {"loss": loss}), run_id="r-plain")
    server.wait_for("/runs/r-plain/incidents", lambda one: one["incidents"], "the spike is there")

    page = visit("/runs/r-plain")
    page.wait_for_selector("#rollback-open[title*='has not said that it looks for orders']")
    page.wait_for_selector("#incidents :text('rollback can\\'t be ordered')")

    assert page.is_disabled("#rollback-open")
    assert page.locator("#incidents [data-rollback]").count() == 0


def test_where_rollbacks_did_not_cure_it_the_dialog_warns_before_the_next_one(spoilt: Spoilt, visit: Visit) -> None:
    page = visit(spoilt.path, **PHONE)
    first = """(id) => {
      const { page } = window.stability;
      const known = page.incidentMap.get(id);
      const suggestion = { ...known.suggestion, fix_first: "cause" };
      page.setIncident({ ...known, version: known.version + 1, suggestion });
    }"""
    page.wait_for_selector(f'#incidents [data-rollback="{spoilt.spike}"]')
    page.evaluate(first, spoilt.spike)
    page.click("#rollback-open:not([disabled])")
    page.wait_for_selector("#rollback-why.away:visible")


#: A graver incident is reported, as the live feed does it, and the page brings everything up to date.
GRAVER = """(id) => {
  const page = window.stability.page;
  page.setIncident({ ...page.incidentMap.get(id), incident_id: "i-graver", kind: "divergence", severity: "critical",
    title: "Loss diverges", opened: page.now() });
  page.onTick();
}"""


@pytest.mark.soak
def test_what_is_reported_between_press_and_release_moves_nothing_under_the_pointer(
    spoilt: Spoilt, visit: Visit
) -> None:
    page = visit(spoilt.path)
    wait_in(page, "stability.page.ready && stability.page.focus.hasLine()")  # until then, what loads above moves it
    page.hover(f'#incidents [data-rollback="{spoilt.spike}"]')
    page.mouse.down()
    page.evaluate(GRAVER, spoilt.spike)
    page.mouse.up()
    page.wait_for_selector(".dialog[open]")
    page.wait_for_selector("#incidents [data-incident=i-graver]")


def in_reach(page: Page) -> bool:
    """Return whether the progress of a rollback leaves the chart in sight and in reach."""
    chart, panel = page.locator("#chart-focus").bounding_box(), page.locator("#rollback-dialog").bounding_box()
    assert chart is not None
    assert panel is not None
    middle = [chart["x"] + chart["width"] / 3, chart["y"] + chart["height"] / 2]
    there = "([x, y]) => Boolean(document.elementFromPoint(x, y).closest('#chart-focus'))"
    return bool(page.evaluate(there, middle)) and panel["width"] * panel["height"] < 0.2 * 1280 * 860


@pytest.mark.soak
def test_a_checkpoint_from_inside_the_spike_is_ordered_after_one_more_click_and_the_chart_stays_in_reach(
    own: Spoilt, visit: Visit
) -> None:
    page = visit(own.path)
    page.click("#rollback-open:not([disabled])")
    page.wait_for_selector("#rollback-confirm:not([disabled])")
    assert page.is_hidden("#rollback-accept")
    page.check(".choice input[value='250']")
    assert page.is_disabled("#rollback-confirm")
    assert "30 steps after the onset of an open spike (step 220)" in page.inner_text(".dialog .inside")
    page.check("#rollback-accept")
    assert page.input_value("#rollback-skip") == "251-320"
    page.fill("#rollback-skip", "240-270")
    assert page.is_disabled("#rollback-confirm")
    assert "from step 251 on" in page.inner_text("label[for=rollback-skip]")
    page.fill("#rollback-skip", "255-270")
    assert "skips the batches of steps 255–270" in page.inner_text("#rollback-sentence")
    page.click("#rollback-confirm")
    page.wait_for_selector("#rollback-progress")
    assert in_reach(page)
    (own.folder / "go").touch()
    page.wait_for_selector("#rollback-progress[data-state=done]")
    page.click("#rollback-close")
    page.wait_for_selector("#rollback-dialog", state="hidden")
    [command] = own.server.get(f"/runs/{own.run}/commands")["commands"]
    assert (command["to_step"], command["skip_range"]) == (250, [255, 270])


@pytest.mark.parametrize("own", [()], ids=["none"], indirect=True)
def test_without_a_checkpoint_nothing_is_chosen_and_the_reason_is_said(own: Spoilt, visit: Visit) -> None:
    page = visit(own.path)
    page.click("#rollback-open:not([disabled])")
    page.wait_for_selector("#rollback-sentence")
    assert "there is nothing to go back to" in page.inner_text("#rollback-sentence")
    assert page.is_disabled("#rollback-confirm")
    assert page.evaluate(FORM)["step"] is None


def test_a_torn_checkpoint_is_shown_with_what_is_wrong_and_can_not_be_chosen(own: Spoilt, visit: Visit) -> None:
    (own.folder / "checkpoint-200").write_bytes(b"PK\x03\x04 and nothing more")
    own.server.wait_for(f"/runs/{own.run}/rollback", lambda offer: offer["withheld"], "the agent has looked", 30)
    page = visit(own.path)
    page.wait_for_selector("#checkpoints .checkpoint.off >> text=still being written")
    page.click("#rollback-open:not([disabled])")
    torn = page.locator(".choice.withheld")
    assert "checkpoint-200 is truncated." in torn.inner_text()
    assert torn.locator("input").count() == 0
    assert page.evaluate(FORM)["step"] is None
    assert page.locator(".choice input").evaluate_all("all => all.map((one) => one.value)") == ["250"]


async def _named_by_a_stranger(server: Server, run: str, step: int) -> None:
    """Somebody with a key for the server, and no rank of the job, announces a checkpoint."""
    stranger = Job()
    stranger.info = SourceInfo("r0-7-7", rank=0, node="elsewhere")
    async with RawAgent(f"{server.url.replace('http', 'ws', 1)}/api/v1/agent") as agent:
        await agent.hello(run, "a7-7", [stranger.info], project="")
        await agent.store(stranger.event("checkpoint", step, path="s3://elsewhere/evil"))


def test_a_checkpoint_that_no_rank_of_the_job_wrote_is_ordered_after_one_more_click(own: Spoilt, visit: Visit) -> None:
    with ThreadPoolExecutor(1) as beside:  # Playwright's own event loop runs in this thread
        beside.submit(asyncio.run, _named_by_a_stranger(own.server, own.run, 210)).result()
    own.server.wait_for(f"/runs/{own.run}/rollback", lambda offer: offer["withheld"], "it is known", 30)
    page = visit(own.path)
    page.click("#rollback-open:not([disabled])")
    page.wait_for_selector("#rollback-confirm:not([disabled])")
    assert page.evaluate(FORM)["step"] == "200"
    assert "not verified" in page.inner_text(".choice.withheld")
    page.check(".choice.withheld input[value='210']")
    assert page.is_disabled("#rollback-confirm")
    assert "s3://elsewhere/evil is not verified: no agent of the job has seen it" in page.inner_text(".dialog .inside")
    page.check("#rollback-accept")
    page.click("#rollback-confirm")
    page.wait_for_selector("#rollback-progress")
    [command] = own.server.get(f"/runs/{own.run}/commands")["commands"]
    assert (command["to_step"], command["checkpoint"]) == (210, "s3://elsewhere/evil")
