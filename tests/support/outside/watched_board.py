"""A server that others watch: a heartbeat, Alertmanager's watchdog, an agent with a channel; to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from types import TracebackType

from redis import Redis

from stabilityalerting.lease import KEY as LEASE_KEY
from stabilitybackend.storage.redis_server.embedded import running_url
from support.outside.alertmanager import Alertmanager
from support.outside.dead_mans_switch import Outside
from support.plain_redis import PlainRedis
from support.ports import free_port
from support.processes import Server
from support.waiting import wait_until

__all__ = ["VICTIMS", "WatchedBoard"]

#: Who is killed -> how long after that the server may still think that all is well, seconds: Redis is asked each second
#: and has two to answer; the lease of alerting is asked for each two seconds and is missed after six.
VICTIMS = {"server": 0.0, "frozen server": 0.0, "redis": 3.5, "alerting": 9.0}

_JOB = """
import queue, sys, threading, time
import stabilityclient
run = stabilityclient.init(project="p", run_id="watched")
titles = queue.SimpleQueue()
def listen():
    for line in sys.stdin:
        titles.put(line.strip())
threading.Thread(target=listen, daemon=True).start()
for step in range(1, 10_000_000):
    run.log(step, {"loss": 2.0 + 1.0 / step})
    while not titles.empty():
        run.alert(titles.get())
    time.sleep(0.1)
"""


class WatchedBoard:
    """A server, a job of one rank with its agent, Alertmanager, and those outside. All of it ends with the context.

    Args:
        folder: empty, of all of them.
        every_s: seconds between two signs of life.
        redis_of_its_own: a ``redis-server`` beside the server, which is killed for good; else the embedded one.
    """

    def __init__(self, folder: Path, every_s: float, *, redis_of_its_own: bool = False) -> None:
        self.every_s = every_s
        self.outside = Outside(every_s, every_s / 2)
        self._folder = folder
        self._own = redis_of_its_own
        self._stack = ExitStack()
        self.alertmanager: Alertmanager
        self.server: Server
        self._redis: PlainRedis
        self._job: subprocess.Popen[str]

    def __enter__(self) -> WatchedBoard:
        folder, enter = self._folder, self._stack.enter_context
        try:
            enter(self.outside)
            self.alertmanager = enter(Alertmanager(folder, self.outside.url))
            env = self.outside.variables(self.every_s) | {"STABILITY_ALERTMANAGER_URL": self.alertmanager.url}
            if self._own:
                self._redis = enter(PlainRedis(folder, "--appendonly", "yes", "--appendfsync", "everysec"))
                env["STABILITY_REDIS_URL"] = self._redis.url
            self.server = enter(Server(folder / "data", free_port(), env))
            around = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")} | {
                "STABILITY_URL": self.server.url, "STABILITY_DIR": str(folder / "spool"), "STABILITY_DRAIN_S": "1",
                "STABILITY_AGENT_ALERT_URL": f"{self.outside.url}/agent",
                "STABILITY_AGENT_ALERT_AFTER_S": f"{self.every_s:g}",
            }  # fmt: skip
            self._job = subprocess.Popen([sys.executable, "-c", _JOB], env=around, stdin=subprocess.PIPE, text=True)
            self._stack.callback(self._end_job)
            self.raises("first")
            wait_until(lambda: self.is_told("first"), 30, "the agent is there, and its first incident is told")
            wait_until(self.watchdog_ends, 30, "the watchdog fires")
            wait_until(lambda: self.outside.good_signs(0.0, time.monotonic()), 30, "the heart beats")
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _end_job(self) -> None:
        self._job.kill()
        self._job.communicate()

    # --- who is killed -------------------------------------------------------------------------------------------

    def kill(self, victim: str) -> float:
        """Kill one of VICTIMS; return when, monotonic seconds."""
        moment = time.monotonic()
        if victim == "server":
            self.server.kill()
        elif victim == "frozen server":
            self._signal(signal.SIGSTOP)
        elif victim == "redis":
            self._redis.kill()
        else:  # it can't get the lease under which alone it may send
            with self._store() as store:
                store.delete(LEASE_KEY)
                store.hset(LEASE_KEY, "not", "a lease")
        return moment

    def heal(self, victim: str) -> None:
        """Bring it back."""
        if victim == "server":
            self.server.start()
        elif victim == "frozen server":
            self._signal(signal.SIGCONT)
        elif victim == "redis":
            self._redis.come_back()
        else:
            with self._store() as store:
                store.delete(LEASE_KEY)

    def kill_embedded_redis(self) -> None:
        """kill -9 of the Redis that the server started, once it runs; the server starts it again."""
        wait_until(lambda: running_url(self.server.data_dir), 30, "the embedded Redis runs")
        os.kill(self.server.redis_pid(), signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        assert self.server.process is not None
        os.kill(self.server.process.pid, number)

    def _store(self) -> Redis:
        url = self._redis.url if self._own else running_url(self.server.data_dir)
        assert url is not None
        return Redis.from_url(url)

    # --- what is said --------------------------------------------------------------------------------------------

    def raises(self, title: str) -> None:
        """Let the job raise an incident."""
        assert self._job.stdin is not None
        self._job.stdin.write(f"{title}\n")
        self._job.stdin.flush()

    def is_told(self, title: str) -> bool:
        """Whether each receiver got an incident."""
        return bool(self.outside.opened("hook", title) and self.outside.opened("slack", title))

    def unsure(self) -> int:
        """Return how many messages to Slack a killed server left open: it is not told of those again."""
        log = (self.server.data_dir.parent / "server.log").read_text(errors="replace")
        return log.count("is not sent again")

    def watchdog_ends(self) -> float | None:
        """Return in how many seconds Alertmanager ends the watchdog if it hears nothing more, None where it is over."""
        found = self.alertmanager.alerts(alertname="StabilityboardWatchdog")
        return datetime.fromisoformat(found[0]["endsAt"]).timestamp() - time.time() if found else None
