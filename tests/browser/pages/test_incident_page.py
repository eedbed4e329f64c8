"""A real job that hangs and one that dies, on the page that an alert leads to: what it says, and what it can order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from support.ports import free_port
from support.processes import Ranks, Server
from support.waiting import wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Page

Visit = Callable[..., "Page"]
#: A phone, held upright.
PHONE = {"width": 390, "height": 844}
#: An agent leaves with its test: nobody waits for what it still had to send.
QUICK = {"STABILITY_DRAIN_S": "10"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    port = free_port()
    with Server(tmp_path_factory.mktemp("incidents") / "data", port, env={"STABILITY_HANG_FLOOR_S": "3"}) as server:
        yield server


def job(server: Server, folder: Path, run_id: str, world_size: int, **plan: Any) -> Ranks:
    """Start ranks of tests/stack/job.py with checkpoints."""
    plan |= {"stop": 100_000, "period_s": 0.02, "checkpoints": str(folder)}
    spool = folder / "spool"
    return Ranks(
        "job.py", [json.dumps(plan)], url=server.url, folder=spool, run_id=run_id, world_size=world_size, **QUICK
    )


def incident(server: Server, run_id: str, kind: str, when: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Wait for the incident of a kind that is as asked for."""

    def fitting(answer: dict[str, Any]) -> list[dict[str, Any]]:
        return [one for one in answer["incidents"] if one["kind"] == kind and when(one)]

    return fitting(server.wait_for(f"/runs/{run_id}/incidents", fitting, f"the {kind} is told", 60))[0]


def test_a_hang_on_a_phone_from_the_verdict_to_the_restart(server: Server, visit: Visit, tmp_path: Path) -> None:
    with job(server, tmp_path, "r-hang", 3, hang_at=[1, 30]) as ranks:
        found = incident(server, "r-hang", "hang", lambda one: one["evidence"]["verdict"]["dump"])
        dump = found["evidence"]["verdict"]["dump"]
        server.wait_for(f"/runs/r-hang/stacks/{dump}", lambda answer: answer["complete"], "all stacks are here")
        page = visit(f"{server.url}/runs/r-hang/incidents/{found['incident_id']}", **PHONE)

        # Who, where it stands, how it is known; nothing hangs over the edge of the phone.
        page.wait_for_selector("#incident-stacks .stack-group.odd")
        assert "rank 1" in page.inner_text("#incident-verdict dl").lower()
        assert "rank 1 " in page.inner_text(".stack-group.odd summary")
        assert "in data" in page.inner_text(".stack-group.odd summary")
        assert page.locator(".stack-group.odd .frame.user .frame-name").first.inner_text() == "main"
        assert page.locator(".rank-table tr.suspect td:first-child").all_inner_texts() == ["1"]
        assert "Stacks of 3 ranks taken" in page.inner_text("#incident-timeline")
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]

        # Somebody else looks after it: this page says so by itself, and its verdict stays the same element.
        page.evaluate("document.querySelector('.stack-group.odd').dataset.mine = 'yes'")
        httpx.post(f"{server.url}/api/v1/runs/r-hang/incidents/{found['incident_id']}/ack", json={}, timeout=30)
        page.wait_for_selector("#incident-head .chip.accent")
        assert page.is_hidden("#incident-ack")
        assert page.get_attribute(".stack-group.odd", "data-mine") == "yes"

        # New stacks, beside those of the verdict.
        page.click("#incident-dump")
        page.wait_for_selector("#stacks-choose option:nth-child(2)", state="attached")
        page.wait_for_selector("#incident-stacks .stack-group.odd")
        wait_until(lambda: "Stacks collected on 1 of 1 node." in page.inner_text("#incident-actions"), 30, "it is told")

        # The restart says what it will do and does nothing before it was typed.
        page.click("#incident-restart")
        page.wait_for_selector("#restart-typed")
        assert "The processes of all 3 ranks are ended on every node" in page.inner_text("#restart-sentence")
        assert "It goes on from checkpoint 20" in page.inner_text("#restart-sentence")
        assert page.is_disabled("#restart-confirm")
        page.fill("#restart-seed", "7")
        assert "in the order of seed 7" in page.inner_text("#restart-sentence")
        page.fill("#restart-seed", "")
        page.fill("#restart-typed", "restore")
        assert page.is_disabled("#restart-confirm")
        page.fill("#restart-typed", "restart")
        page.keyboard.press("Enter")
        page.wait_for_selector("#restart-progress[data-state=acted]")
        assert "Waiting for its launcher" in page.inner_text("#restart-progress")
        wait_until(lambda: all(process.poll() is not None for process in ranks.processes), 20, "the ranks are ended")


@pytest.mark.soak
def test_a_death_is_reached_from_the_runs_page_and_says_how_the_process_ended(
    server: Server, visit: Visit, tmp_path: Path
) -> None:
    with job(server, tmp_path, "r-death", 1, die_at=[0, 30]):
        found = incident(server, "r-death", "process_death", lambda one: one["evidence"]["verdict"])
        page = visit(f"{server.url}/runs/r-death")
        page.click(f"[data-details={found['incident_id']}]")
        page.wait_for_selector("#incident-death dl")
        assert page.evaluate("location.pathname") == f"/runs/r-death/incidents/{found['incident_id']}"
        assert "SIGKILL (9)" in page.inner_text("#incident-death")
        assert "rank 0" in page.inner_text("#incident-verdict dl")
        assert page.is_hidden("#incident-stacks-panel")
        page.click("#incident-run")
        page.wait_for_selector("#incidents article")


@pytest.mark.soak
def test_what_is_not_there_is_said_and_leads_on(server: Server, visit: Visit) -> None:
    page = visit(f"{server.url}/runs/nobody%3Cb%3E/incidents/i-1", quiet=False)
    page.wait_for_selector("#incident-empty:not([hidden])")
    assert "“nobody<b>” is not known to this server" in page.inner_text("#incident-empty")
    assert page.is_hidden("#incident-main")
    page.click("#incident-empty a")
    page.wait_for_selector("#runs-head, #runs-empty:not([hidden])", state="attached")


@pytest.mark.soak
def test_clicks_that_follow_each_other_at_once_lead_to_the_last(server: Server, visit: Visit) -> None:
    # Dash's own component for the address went back to the one before where somebody went there and back at once.
    page = visit(f"{server.url}/gallery", quiet=False)
    browser = page.context.new_cdp_session(page)
    browser.send("Emulation.setCPUThrottlingRate", {"rate": 4})
    there_and_back = """async (pauseMs) => {
      stability.go("/runs/nobody");
      if (pauseMs) await new Promise((resolve) => setTimeout(resolve, pauseMs));
      stability.go("/gallery");
    }"""
    for pause_ms in [0, 1, 3, 8] * 5:
        page.evaluate(there_and_back, pause_ms)
        page.wait_for_timeout(300)
        assert page.evaluate("[location.pathname, stability.opened.root.dataset.page]") == ["/gallery", "gallery"]
    browser.send("Emulation.setCPUThrottlingRate", {"rate": 1})


@pytest.mark.soak
def test_the_batch_behind_a_nan_is_on_the_page_of_its_incident_and_a_later_one_says_that_it_left(
    server: Server, visit: Visit, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    with Ranks("keeping_rank.py", [str(tmp_path)], url=server.url, folder=spool, run_id="keep", **QUICK):
        _look_at_kept_batches(server, visit, tmp_path)


def _look_at_kept_batches(server: Server, visit: Visit, folder: Path) -> None:
    answered = server.wait_for(
        "/runs/keep/commands", lambda a: any(one["state"] == "done" for one in a["commands"]), "the ranks answered"
    )
    page = visit(f"{server.url}/runs/keep/incidents/{answered['commands'][0]['incident_id']}")

    # What the server asked for by itself: the bad sample first, its step marked, its text no markup.
    first = page.locator("#incident-batches .samples tbody tr").first
    first.filter(has_text="NaN").wait_for()  # the other rank's answer may come before
    assert first.locator("td").all_inner_texts()[:6] == ["60", "1", "NaN", "100 %", "web", "60-b"]
    assert "3 × 32 × 32" in first.inner_text()
    first.locator("summary").click()
    assert "onerror='window.pwned=1'> ␀? ␛[31mbuy now" in first.locator("pre").inner_text()
    assert page.evaluate("window.pwned") is None
    bars = "#incident-batches .batch-bars i"
    assert page.locator(f"{bars}.not-finite").evaluate_all("all => all.map((one) => one.dataset.step)") == ["60"]
    assert page.get_attribute(f"{bars}.before", "data-step") == "59"
    within = page.locator("#incident-batches tr.within").evaluate_all("all => all.map((one) => one.dataset.step)")
    assert min(within) == "60"  # and on to where it ended, if it has
    assert "All 128 samples" in page.inner_text("#incident-batches .group-foot")
    assert "asked when it was found" in page.inner_text("#batches-note")

    # Somebody asks later: the ring is 40 steps on.
    (folder / "seen").touch()
    server.wait_for("/runs/keep", lambda run: run["last_step"] > 110, "the batch has left")
    page.click("#incident-show-batches:not([disabled])")
    page.wait_for_selector("#incident-batches .batch-left")
    assert "this began at 60, so its batch had left" in page.inner_text(".batch-left")
    assert page.locator("#batches-choose option").count() == 2
    assert "Batches shown by 2 of 2 ranks." in page.inner_text("#incident-actions")
