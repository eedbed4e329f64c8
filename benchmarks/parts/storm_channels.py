"""The channels of a storm of alerts: receivers with the limits that Slack and PagerDuty publish, and what they got."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import msgspec
from aiohttp import web
from redis import Redis

from stabilityalerting.storms import SUMMARY, Storm

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.outside.pagerduty import FakePagerDuty
from support.outside.rate_limit import RateLimit
from support.slack.fake_slack import FakeSlack

__all__ = ["Channels", "Row"]

#: Calls a minute and at once. Slack: one message a second and channel, short bursts; tier 3 for updates, tier 4 files.
SLACK = {"chat.postMessage": (60, 10), "chat.update": (50, 10), "files.getUploadURLExternal": (100, 20)}
PAGERDUTY = (120, 120)
#: Seconds between two looks for new storms.
LIST_S = 1.0
_INCIDENT = re.compile(r"/incidents/([^/?#\"|>]+)")
#: What is said of an incident, in order.
OPENED, MORE, OVER = "opened", "more", "over"


class LimitedSlack(FakeSlack):
    """A workspace that answers 429 to calls beyond its limits."""

    limits: ClassVar[dict[str, RateLimit]] = {method: RateLimit(*limit) for method, limit in SLACK.items()}

    async def _call(self, request: web.Request) -> web.Response:
        limit = self.limits.get(request.match_info["method"])
        wait_s = limit.wait_s(time.monotonic()) if limit is not None else 0.0
        if wait_s:
            headers = {"Retry-After": str(math.ceil(wait_s))}
            return web.json_response({"ok": False, "error": "ratelimited"}, status=429, headers=headers)
        return await super()._call(request)


class Row(msgspec.Struct):
    """What a channel got. Times: seconds from the incident to the message that tells of it."""

    channel: str
    messages: int
    opened: int
    summaries: int
    most_60s: int
    limit_60s: str
    refused_429: int
    median_s: float
    last_s: float
    counted: int
    lost: int
    kinds: dict[str, int]
    wrong: list[str]


class Channels:
    """All of them, while the context lasts."""

    def __init__(self) -> None:
        self.slack, self.pagerduty = LimitedSlack(), FakePagerDuty()
        self.pagerduty.limit = RateLimit(*PAGERDUTY)
        self._limits = {"slack": RateLimit(*SLACK["chat.postMessage"]), "webhook": RateLimit(1e6, 10**6)}
        #: Channel -> what was taken of which incident, and when: (monotonic seconds, incident, what).
        self.taken: dict[str, list[tuple[float, str, str]]] = defaultdict(list)
        self._counted: dict[str, set[str]] = defaultdict(set)
        #: Summaries that are to be sent, of all channels.
        self.summaries_due = 0
        self._listed, self._keys = 0.0, list[bytes]()
        self._moments: dict[str, float] = {}
        channels = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                name = self.path.removeprefix("/")
                wait_s = channels._limits[name].wait_s(time.monotonic())
                self.send_response(429 if wait_s else 200)
                if wait_s:
                    self.send_header("Retry-After", str(int(wait_s) + 1))
                else:
                    channels.taken[name].append((time.monotonic(), *_said(name, body)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="channels")

    def variables(self) -> dict[str, str]:
        """Return the environment of a server that tells all of them."""
        url = f"http://127.0.0.1:{self._server.server_port}"
        return {
            **self.slack.variables(), **self.pagerduty.variables(), "STABILITY_SLACK_WEBHOOK_URL": f"{url}/slack",
            "STABILITY_WEBHOOK_URL": f"{url}/webhook", "STABILITY_WEBHOOK_SECRET": "secret",
        }  # fmt: skip

    def begins(self) -> None:
        """Note that the storm begins."""
        self._moments["begin"] = time.time()

    def told(self, what: str) -> None:
        """Note that something ended, and print what has come by then."""
        self._moments[what] = time.time()
        counts = {name: len(found) for name, found in self._all().items()}
        print(f"{time.time() - self._moments['begin']:6.0f} s: {what}: {counts}", flush=True)

    def quiet_s(self) -> float:
        """Return how long no channel has got anything, seconds."""
        newest = max((found[-1][0] for found in self._all().values() if found), default=0.0)
        return time.monotonic() - newest

    def look(self, redis: Redis) -> None:
        """Note which incidents a summary has counted by now: a storm is forgotten when another one follows."""
        if time.monotonic() - self._listed >= LIST_S:
            self._listed = time.monotonic()
            self._keys = list(redis.scan_iter("sb:alerting:storm:*", count=1_000))
            due = [one for key in redis.scan_iter("sb:alerting:due:*", count=1_000) for one in redis.zrange(key, 0, -1)]
            self.summaries_due = sum(json.loads(member)[0] == SUMMARY for member in due)
        found: Any = redis.mget(self._keys) if self._keys else []
        for key, data in zip(self._keys, found, strict=True):
            if data is not None:
                storm = msgspec.json.decode(data, type=Storm)
                self._counted[key.decode().split(":")[3]].update(storm.members[: storm.reported])

    def rows(self, alarming: Mapping[str, dict[str, Any]]) -> list[Row]:
        """Return a row for each channel.

        Args:
            alarming: incidents that are to wake somebody, by id.
        """
        limits = {
            "slack_app": self.slack.limits["chat.postMessage"], "slack": self._limits["slack"],
            "pagerduty": self.pagerduty.limit, "webhook": self._limits["webhook"],
        }  # fmt: skip
        return [self._row(name, found, limits[name], alarming) for name, found in self._all().items()]

    def _row(
        self, name: str, found: list[tuple[float, str, str]], limit: RateLimit | None,
        alarming: Mapping[str, dict[str, Any]],
    ) -> Row:  # fmt: skip
        assert limit is not None
        skew_s = time.time() - time.monotonic()
        first = {incident: at for at, incident, what in reversed(found) if what == OPENED}
        behind = self._counted[name]
        wrong, now_open = [], set[str]()
        for _, incident, what in found:
            if (what == OPENED) is (incident in now_open):  # one may open again after it was over
                wrong.append(f"{what} where it was {'open' if incident in now_open else 'not open'}: {incident}")
            now_open = now_open - {incident} if what == OVER else now_open | {incident}
        wanted = {one for one, facts in alarming.items() if name != "pagerduty" or facts["severity"] != "info"}
        counted = {one for one in wanted - first.keys() if one in behind or alarming[one].get("caused_by")}
        lost = wanted - first.keys() - counted
        wrong += [f"lost: {one} {alarming[one]['kind']} {alarming[one]['state']}" for one in sorted(lost)]
        most = limit.most_within(60.0)
        if most > limit.per_minute + limit.burst:
            wrong.append(f"{most} messages in a minute")
        waits = sorted(at + skew_s - alarming[one]["opened"] for one, at in first.items() if one in alarming)
        return Row(
            name, len(limit.taken), len(first), sum(what == MORE for _, _, what in found), most,
            f"{limit.per_minute:g}+{limit.burst}", len(limit.refused), *_middle_and_last(waits), len(counted),
            len(lost), dict(Counter(alarming[one]["kind"] for one in first if one in alarming)), wrong,
        )  # fmt: skip

    def _all(self) -> dict[str, list[tuple[float, str, str]]]:
        skew_s = time.time() - time.monotonic()
        threads: dict[str, str] = {}
        app = []
        for message in list(self.slack.messages):
            found = _INCIDENT.search(json.dumps(message.blocks))
            if message.thread_ts is None and found:
                threads[message.ts] = found[1]
            incident = threads.get(message.thread_ts or message.ts, "?")
            app.append(
                (message.posted - skew_s, incident, _word(message.text, in_thread=message.thread_ts is not None))
            )
        pages = []
        for at, event in zip(self.pagerduty.limit.taken if self.pagerduty.limit else [], self._pages(), strict=False):
            pages.append((at, *event))
        return {"slack_app": app, "slack": list(self.taken["slack"]), "pagerduty": pages,
                "webhook": list(self.taken["webhook"])}  # fmt: skip

    def _pages(self) -> list[tuple[str, str]]:
        found, seen = [], set[str]()
        for event in list(self.pagerduty.events):
            key, action = event["dedup_key"], event["event_action"]
            what = OVER if action == "resolve" else MORE if key in seen else OPENED
            seen.add(key)
            found.append((key, what))
        return found

    def __enter__(self) -> Channels:
        self.slack.__enter__()
        self.pagerduty.__enter__()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.pagerduty.__exit__(kind, error, trace)
        self.slack.__exit__(kind, error, trace)


def _said(name: str, body: dict[str, Any]) -> tuple[str, str]:
    if name == "webhook":
        what = body["type"].removeprefix("incident.")
        return body["incident"]["id" if "id" in body["incident"] else "incident_id"], {
            "opened": OPENED, "resolved": OVER
        }.get(what, MORE)  # fmt: skip
    found = _INCIDENT.search(json.dumps(body))
    return found[1] if found else "?", _word(body["text"], in_thread=False)


def _word(text: str, *, in_thread: bool) -> str:
    if text.startswith(":white_check_mark:"):
        return OVER
    return MORE if in_thread or ": More like this:" in text or ": Escalated:" in text else OPENED


def _middle_and_last(waits: list[float]) -> tuple[float, float]:
    return (round(waits[len(waits) // 2], 1), round(waits[-1], 1)) if waits else (0.0, 0.0)
