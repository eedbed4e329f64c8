"""All processes of a server are replaced one after the other under load: nothing is lost, nobody is woken, and whoever
looks sees new points all the time.

    python -m pytest -m soak tests/browser/test_rolling_restart.py -s
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.outside.receiver_thread import ReceiverThread
from support.processes import Ranks
from support.roles.balancer import Balancer
from support.roles.servers import RoleServers

if TYPE_CHECKING:
    from browser.conftest import OpenPage

#: In the order of docs/operations.md.
ORDER = ("pages-1", "pages-2", "alerting-1", "door-1", "door-2", "worker-1", "worker-2")
RUNS = ("first", "second", "third")
PERIOD_S = 0.05
#: Longest time without a new point on a page, seconds.
WITHOUT_NEWS_S = 5.0
#: Pause between two restarts, seconds: as a rollout has it, until the new one is ready.
PAUSE_S = float(os.environ.get("PAUSE_S", "6"))
#: Notes when points come, unix seconds.
NOTES = """
window.news = []; window.told = [];
window.WebSocket = class extends window.WebSocket {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", (event) => {
      const type = JSON.parse(event.data).type;
      if (type === "points") window.news.push(Date.now() / 1000);
      else if (type !== "ping" && type !== "health" && type !== "run") window.told.push([Date.now() / 1000, type]);
    });
    this.addEventListener("close", (event) => window.told.push([Date.now() / 1000, `close ${event.code}`]));
  }
};
"""


def _job(servers: RoleServers, folder: Path) -> Ranks:
    folder.mkdir()
    arguments = [str(folder / "enough"), str(PERIOD_S)]
    return Ranks("roles/steady_rank.py", arguments, url=servers.url, folder=folder / "spool", run_id=folder.name)


def _replace(servers: RoleServers, name: str) -> float:
    """SIGTERM a process, and start its successor when it has ended; return how long it took to end, seconds."""
    began = time.monotonic()
    process = servers.servers[name].process
    assert process is not None
    servers.send_signal(name, signal.SIGTERM)
    assert process.wait(30) == 0
    ended = time.monotonic() - began
    servers.servers[name].start(wait=False)
    servers.ready(name)
    return ended


def _gaps(news: list[float], since: float, until: float) -> list[tuple[float, float]]:
    """Return (length, begin) of the times without a new point, longest first."""
    inside = [since, *(at for at in news if since < at < until), until]
    return sorted(((after - before, before) for before, after in itertools.pairwise(inside)), reverse=True)


@pytest.mark.soak
def test_a_rolling_restart_of_all_roles_loses_no_point_wakes_nobody_and_leaves_no_page_without_news(
    tmp_path: Path, open_page: OpenPage
) -> None:
    with ExitStack() as stack:
        receiver = stack.enter_context(ReceiverThread())
        hook = {"webhook_url": f"{receiver.url}/hook", "webhook_secret": "of the test"}
        servers = stack.enter_context(RoleServers(tmp_path / "server", **hook))
        for name in ORDER:
            servers.add(name, name[:-2])
        servers.ready()
        ports = [int(servers.servers[name].url.rpartition(":")[2]) for name in ("pages-1", "pages-2")]
        board = stack.enter_context(Balancer(ports))
        jobs = [stack.enter_context(_job(servers, tmp_path / run)) for run in RUNS]
        pages = servers.servers["pages-2"]
        for run in RUNS:
            pages.wait_for(f"/runs/{run}", lambda found: (found["last_step"] or 0) > 40, f"{run} is there", 60)
        shown = [open_page(f"{board.url}/runs/{run}", quiet=False, before=NOTES) for run in RUNS[:2]]
        for page in shown:
            page.wait_for_function("() => window.news.length > 5")
        began, lines = time.time(), list[tuple[float, str]]()
        for name in ORDER:
            lines.append((time.time(), f"SIGTERM {name}"))
            took = _replace(servers, name)
            lines.append((time.time(), f"{name} is back; it ended after {took:.1f} s"))
            page_until = time.monotonic() + PAUSE_S
            while time.monotonic() < page_until:
                shown[0].wait_for_timeout(100)
        until = time.time()
        gaps = [_gaps(page.evaluate("() => window.news"), began, until) for page in shown]
        for number, page in enumerate(shown):
            events = [tuple(one) for one in page.evaluate("() => window.told")]
            longest = ", ".join(f"{length:.1f} s at {at - began:.0f}" for length, at in gaps[number][:4])
            print(f"page {number}: without news {longest}")
            print("   ", [(round(at - began, 1), what) for at, what in events if at > began])
        for at, line in lines:
            print(f"{at - began:6.1f} {line}")
        for run in RUNS:
            (tmp_path / run / "enough").touch()
        outcomes = [lines[-2] for job in jobs for lines in job.outputs(120)]
        lost = dict[str, Any]()
        for run in RUNS:
            pages.wait_for(f"/runs/{run}", lambda found: found["status"] == "finished", f"{run} is over", 60)
            for entry in pages.get(f"/runs/{run}/series", metric="loss", view="all", points=100_000)["series"]:
                if entry["steps"] != list(range(1, len(entry["steps"]) + 1)):
                    lost[run] = len(entry["steps"])
        incidents = [one for run in RUNS for one in pages.get(f"/runs/{run}/incidents")["incidents"]]
        alerts = [json.loads(body) for path, body in receiver.received if path == "/hook"]
    assert outcomes == ["delivered"] * (2 * len(RUNS))
    assert (lost, [one["kind"] for one in incidents], alerts) == ({}, [], [])
    assert max(gap[0][0] for gap in gaps) <= WITHOUT_NEWS_S
