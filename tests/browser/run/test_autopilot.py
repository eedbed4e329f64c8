"""The panel of the autopilot: what it would do and why, a policy that is wrong, and the button that stops it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from support.gateway_stack import log_frames
from support.job_frames import Job
from support.jobs.piloted_job import stuck

if TYPE_CHECKING:
    from browser.run.conftest import Visit
    from support.processes import Server


@pytest.mark.soak
def test_people_see_what_it_would_do_and_stop_it(server: Server, visit: Visit) -> None:
    job = Job()
    frames = [job.event("start"), job.event("handler", can=["skip_range", "lr_scale", "seed"], branches=True)]
    frames.append(job.event("obeys", orders=["stop"]))
    for last in (100, 200, 280):
        steps = range(last - 99 if last <= 200 else 201, last + 1)
        frames.append(job.rows(steps, {"loss": [stuck(220)(step) for step in steps]}))
        if last <= 200:
            frames.append(job.event("checkpoint", last, path=f"c/{last}"))
            frames.append(job.event("checkpoint_seen", last, path=f"c/{last}", kind="file", complete=True))
    log_frames(server.url, *frames, run_id="r-piloted")
    place = f"{server.url}/api/v1/runs/r-piloted/autopilot"
    httpx.put(place, json={"policy": "dry_run: true\n"}, verify=False).raise_for_status()
    server.wait_for("/runs/r-piloted/autopilot", lambda one: one["entries"], "it has noted what it would do")

    page = visit("/runs/r-piloted", quiet=False)  # the refused policy is in its console
    page.wait_for_selector("#autopilot-badge:has-text('Autopilot dry run')")
    page.click("#autopilot-badge")
    page.wait_for_selector("#autopilot-body tr:has-text('Would have rolled back to 200')")
    page.wait_for_selector("#autopilot-note:has-text('Would have rolled back to step 200')")

    page.fill("#autopilot-text", "act_on: [level_shift]")
    page.click("#autopilot-save")
    page.wait_for_selector("#autopilot-trouble:has-text('line 1: act_on[1]')")
    assert page.input_value("#autopilot-text") == "act_on: [level_shift]"
    assert server.get("/runs/r-piloted/autopilot")["policy"] == "dry_run: true\n"

    page.click("#autopilot-stop")
    page.wait_for_selector("#autopilot-mode:has-text('off')")
    page.wait_for_selector("#autopilot-badge", state="hidden")
    assert server.get("/runs/r-piloted/autopilot")["mode"] == "off"
