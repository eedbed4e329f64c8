"""500 incidents in a minute from 100 runs, then all agents cut off at once: what does each channel get, and how soon?

A real server; 100 runs with an agent's connection each (alerts of the job, a NaN that recovers, a lost GPU, in every
second a killed process, at random moments of one minute, in ten projects on fifty nodes) and one run of 256 nodes,
whose agents and all others are cut off in one moment and come back a minute later. Receivers of our own over sockets,
which answer 429 beyond their limits: a Slack app (one message a second and channel, ten at once), an incoming webhook
of Slack (the same), PagerDuty (120 events a minute and key), and a signed webhook without limit.

Each incident that wakes anybody has to be a message of its own, or counted in the summary of a storm or behind its
cause; what ends comes after what opens; no channel takes more than its limit.

    python benchmarks/alert_storm.py [--runs 100] [--nodes 256] [--minute 60]

Limits: https://docs.slack.dev/apis/web-api/rate-limits; PagerDuty's support on Events API v2, 120 a minute and key:
https://community.pagerduty.com/forum/t/monitoring-api-rate-limiting/3318
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from parts.server_process import ServerProcess
from parts.storm_channels import Channels
from parts.storm_runs import StormRun
from redis import Redis
from simulated_job import GPUS_PER_NODE, SimulatedJob

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.waiting import until

#: Seconds without a word after which an agent is lost, and until the lost ones come back.
LOST_S, AWAY_S = 15.0, 60.0
PROJECTS, NODES = 10, 50


def main() -> None:
    """Print a row for each channel; exit with 1 where something is lost, out of order, or beyond a limit."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--nodes", type=int, default=256, help="of the large run: an agent each")
    parser.add_argument("--minute", type=float, default=60.0, help="seconds in which the incidents begin")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="alert-storm-"))
    with Channels() as channels:
        env = channels.variables() | {"STABILITY_AGENT_LOST_S": f"{LOST_S:g}"}
        with ServerProcess(folder / "data", env) as server:
            bad = asyncio.run(_storm(server, channels, given.runs, given.nodes, given.minute))
    raise SystemExit(bad)


async def _storm(server: ServerProcess, channels: Channels, runs: int, nodes: int, minute_s: float) -> bool:
    chance = random.Random(1)
    url = f"{server.url.replace('http', 'ws')}/api/v1/agent"
    every = [
        StormRun(url, f"run-{at:03}", f"project-{at % PROJECTS}", f"node-{at % NODES:02}", dies=at % 2 == 0)
        for at in range(runs)
    ]
    large = SimulatedJob(server.url, "large", nodes * GPUS_PER_NODE, health_s=5.0, gpu_every_s=60.0)
    stop = asyncio.Event()
    node_agents = asyncio.create_task(large.run(stop))
    await asyncio.gather(*(run.begin() for run in every))
    await until(lambda: _agents(server) == nodes + runs, 60, "all agents are there")
    channels.begins()
    looks = asyncio.create_task(_look(server, channels))
    print(f"{runs} runs, {nodes} agents more; load {os.getloadavg()[0]:.1f}", flush=True)
    await asyncio.gather(*(run.breaks(minute_s, random.Random(chance.random())) for run in every))
    channels.told(f"{5 * runs} incidents")
    await _settled(channels)
    node_agents.cancel()
    await asyncio.gather(*(run.cut() for run in every), node_agents, return_exceptions=True)
    channels.told("cut off")
    await asyncio.sleep(LOST_S + AWAY_S)
    back = asyncio.create_task(large.run(stop))
    await asyncio.gather(*(run.comes_back() for run in every))
    channels.told("back")
    await asyncio.sleep(AWAY_S)
    await _settled(channels)
    bad = await asyncio.to_thread(_report, server, channels)
    stop.set()
    looks.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await back
    await asyncio.gather(*(run.cut() for run in every))
    return bad


async def _look(server: ServerProcess, channels: Channels) -> None:
    with server.redis() as redis:
        while True:
            channels.look(redis)
            await asyncio.sleep(0.1)


def _agents(server: ServerProcess) -> int:
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return next((int(float(line.split()[1])) for line in lines if line.startswith("stability_agents ")), 0)


async def _settled(channels: Channels) -> None:
    """Wait until no channel has got anything for longer than a summary waits."""
    await until(lambda: channels.quiet_s() > 30.0 and not channels.summaries_due, 600, "all channels are quiet")


def _open_once(redis: Redis) -> set[str]:
    """Return the incidents that were open in at least one of their events."""
    streams = list(redis.scan_iter("*:incident_events", count=1_000))
    entries: list[Any] = [fields for stream in streams for _, fields in redis.xrange(stream)]
    events = [json.loads(fields[b"i"]) for fields in entries]
    return {event["incident_id"] for event in events if event["state"] not in ("recovered", "resolved")}


def _report(server: ServerProcess, channels: Channels) -> bool:
    incidents: list[dict[str, Any]] = []
    for run in server.get("/runs", limit=500)["runs"]:
        incidents += server.get(f"/runs/{run['run_id']}/incidents", limit=500)["incidents"]
    with server.redis() as redis:
        open_once = _open_once(redis)
    # One that was over again when the server first reported it wakes nobody (alerting/stages.py, never_notified).
    alarming = {one["incident_id"]: one for one in incidents if one["alarm"] and one["incident_id"] in open_once}
    rows = channels.rows(alarming)
    kinds = Counter(one["kind"] for one in alarming.values())
    print(f"{len(incidents)} incidents, {len(alarming)} of them alarm: {dict(kinds)}")
    print(f"{'channel':<16}" + "".join(f"{name:>14}" for name in rows[0].__struct_fields__[1:-2]))
    for row in rows:
        print(f"{row.channel:<16}" + "".join(f"{getattr(row, name):>14}" for name in row.__struct_fields__[1:-2]))
        print(f"    opened: {row.kinds}")
        for line in row.wrong[:5]:
            print(f"    {line}")
    return any(row.wrong for row in rows)


if __name__ == "__main__":
    main()
