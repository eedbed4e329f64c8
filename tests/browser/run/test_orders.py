"""The menu of orders on the run page: what a job can do is said before, and a stop asks for a word. Real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.processes import Ranks, Server

if TYPE_CHECKING:
    from browser.run.conftest import Imported, Visit


def test_nothing_is_offered_of_a_run_that_has_ended_nor_of_one_that_is_not_there(
    visit: Visit, imported: Imported
) -> None:
    imported("r-over", [{"step": step, "loss": 2.0} for step in range(20)])
    page = visit("/runs/r-over")
    page.wait_for_selector("#run-status:has-text('finished')")
    page.wait_for_selector("#orders-open:disabled")
    assert page.get_attribute("#orders-open", "title") == "This run has ended: there is no job that could obey."
    page = visit("/runs/r-nowhere", quiet=False)
    page.wait_for_selector("#run-empty h2")
    assert page.is_disabled("#orders-open")


@pytest.mark.soak
def test_a_checkpoint_and_then_a_stop_are_ordered_with_the_keyboard_and_the_run_says_who_stopped_it(
    server: Server, visit: Visit, tmp_path: Path
) -> None:
    script, arguments = "orders/ordered_rank.py", [str(tmp_path), "0.03"]
    with Ranks(script, arguments, url=server.url, folder=tmp_path / "spool", run_id="r-orders") as ranks:
        server.wait_for("/runs/r-orders/orders", lambda r: r["checkpoint_now"]["possible"], "it says what it can")
        page = visit("/runs/r-orders")
        page.wait_for_selector("#checkpoint-open:not([disabled])", state="attached")
        page.focus("#orders-open")
        for key in ("Enter", "Tab", "Enter"):  # the menu, its first entry
            page.keyboard.press(key)
        page.wait_for_selector("#checkpoint-confirm:focus")
        assert "All 2 ranks save the state after the same step" in page.inner_text("#checkpoint-sentence")
        page.keyboard.press("Enter")
        page.wait_for_selector("#checkpoint-progress[data-state='done'] .sentence.good")
        page.keyboard.press("Escape")
        page.wait_for_selector("#orders-open:focus")

        page.click("#orders-open")
        page.click("#stop-open")
        page.wait_for_selector("#stop-typed:focus")
        assert "no step is lost" in page.inner_text("#stop-sentence")
        page.uncheck("#stop-save")
        assert "steps are lost (since the checkpoint of step" in page.inner_text("#stop-sentence")
        page.fill("#stop-typed", "sto")
        assert page.is_disabled("#stop-confirm")
        page.fill("#stop-typed", "stop")
        page.keyboard.press("Enter")
        page.wait_for_selector("#stop-progress[data-state='done'] .sentence.good")
        page.click("#stop-close")
        ranks.outputs()
        page.wait_for_selector("#run-status:has-text('stopped by')")
        page.wait_for_selector("#run-note:has-text('Stopped by')")
    ends = [json.loads((tmp_path / f"end.{rank}").read_text()) for rank in (0, 1)]
    assert ends[0] == ends[1]


@pytest.mark.soak
def test_a_job_that_does_not_say_that_it_saves_is_not_offered_a_checkpoint_and_told_why(
    server: Server, visit: Visit, tmp_path: Path
) -> None:
    plan = json.dumps({"stop": 100_000, "period_s": 0.02})
    with Ranks("job.py", [plan], url=server.url, folder=tmp_path, run_id="r-cannot", world_size=1):
        server.wait_for("/runs/r-cannot/orders", lambda r: r["stop"]["possible"], "it says what it can")
        page = visit("/runs/r-cannot")
        page.click("#orders-open")
        page.click("#checkpoint-open:not([disabled])")
        page.wait_for_selector("#checkpoint-dialog .away:has-text('no function that saves a checkpoint on order')")
        assert page.query_selector("#checkpoint-confirm") is None
        page.keyboard.press("Escape")
        page.click("#orders-open")
        page.click("#stop-open")
        page.wait_for_selector("#stop-save:disabled")
