"""Records what an older version keeps and says: Redis, archive, spool, answers, and the talk of an agent.

    CHECKOUT/.venv/bin/python tests/golden/record.py CHECKOUT FOLDER

It runs the server, the agent and the training process of that checkout, with the NVML and the frames of its tests, and
writes five files into FOLDER; `samples.py` reads them. Numbers of the run `frames` are the same each time; those of the
run `job` are of real processes and differ. Takes a minute, needs redis-server and a C compiler.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

STEPS_BEFORE, BACK_TO = 40, 30


def rank_of_the_job(checkpoints: Path, enough: Path, first: int) -> None:
    """Train as a rank: a checkpoint each tenth step, until the file is there."""
    import stabilityclient

    run = stabilityclient.init(project="golden", name="a job of two ranks", config={"lr": 3e-4, "layers": [2, 4]})
    rank = int(os.environ["RANK"])

    @run.on_rollback
    def back(rollback: Any) -> dict[str, Any]:
        return {"seed": rollback.seed}

    for step in run.steps(first):
        with run.phase("data"):
            time.sleep(0.04)
        with run.phase("optimizer"):
            time.sleep(0.01)
        loss = float("nan") if step == 5 else round(64 * (2 + 3 / step)) / 64
        run.log(step, {"loss": loss, "grad_norm": 1.5, "lr": 3e-4})
        run.batch(step, f"batch-{step}")
        if step % 10 == 0 and rank == 0:
            path = checkpoints / str(step)
            path.write_text(str(step))
            run.checkpoint(step, path)
        if step == 12 and rank == 0:
            run.alert("The learning rate was changed by hand", "a note of the job", severity="warning")
        if enough.exists():
            break
    run.finish()


class Talk:
    """Stands between the agents and the server and writes down each message, in both directions.

    Args:
        port: of the server.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.messages: list[dict[str, Any]] = []
        self._connections = 0

    async def serve(self, socket: Any) -> None:
        """Take an agent's connection and make one of our own for it."""
        from websockets.asyncio.client import connect
        from websockets.exceptions import ConnectionClosed

        self._connections += 1
        number = self._connections
        url = f"ws://127.0.0.1:{self._port}/api/v1/agent"
        async with connect(url, compression=None, max_size=None) as server:

            async def carry(source: Any, target: Any, by: str) -> None:
                with contextlib.suppress(ConnectionClosed):
                    async for data in source:
                        text = base64.b64encode(data).decode()
                        self.messages.append({"connection": number, "by": by, "time": time.time(), "bytes": text})
                        await target.send(data)
                await target.close()

            await asyncio.gather(carry(socket, server, "agent"), carry(server, socket, "server"))


class Recording:
    """One recording: the parts of the older version, and what has to be told to them.

    Args:
        checkout: of the older version. home: empty folder for all that it writes. out: where the samples go.
    """

    def __init__(self, checkout: Path, home: Path, out: Path) -> None:
        self.home, self.out = home, out
        sys.path[:0] = [str(checkout / "tests")]
        from nvml.fake_nvml import FakeNvml, build
        from ports import free_port
        from stack.processes import Server

        plain = free_port()
        self.redis_url = f"redis://127.0.0.1:{plain}"
        self.redis = subprocess.Popen(
            ["redis-server", "--save", "", "--appendonly", "no", "--port", str(plain), "--bind", "127.0.0.1"],
            cwd=home, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        self.server_port, self.talk_port = free_port(), free_port()
        env = {"STABILITY_REDIS_URL": self.redis_url, "STABILITY_WINDOW_MIB": "0.05"}
        self.server = Server(home / "data", self.server_port, env)
        self.nvml = FakeNvml(build(home / "lib"), home, gpus=2)
        self.talk = Talk(self.server_port)
        self.processes: list[subprocess.Popen[str]] = []
        (home / "kmsg").touch()
        (home / "checkpoints").mkdir()

    async def run(self) -> None:
        """Record everything; each step waits for what it needs of the one before."""
        from websockets.asyncio.server import serve

        try:
            await asyncio.to_thread(self.server.start)
            async with serve(self.talk.serve, "127.0.0.1", self.talk_port, compression=None, max_size=None):
                await asyncio.to_thread(self._frames)
                await asyncio.to_thread(self._job)
            await asyncio.to_thread(self._spool)
            await asyncio.to_thread(self._keep)
        finally:
            for process in self.processes:
                process.kill()
            if self.server.process is not None and self.server.process.poll() is None:
                self.server.stop()
            self.redis.kill()
            self.redis.wait()

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        import httpx

        answer = httpx.request(method, f"{self.server.url}/api/v1{path}", json=body)
        assert answer.is_success, (path, answer.text)
        return answer.json()

    def _wait(self, path: str, condition: Any, what: str) -> Any:
        print(f"waiting: {what}", flush=True)
        return self.server.wait_for(path, condition, what, 40)

    def _frames(self) -> None:
        """Send the frames of a run with everything in it: spikes, NaN, a declared rollback, checkpoints."""
        from eventful_run import as_frames, eventful_rows
        from websockets.sync.client import connect

        from stabilityclient.wire import EventBlock, Frame, Hello, decode_message, encode_message

        rows = [
            (step, round(at * 64) / 64, {name: _short(value) for name, value in values.items()})
            for step, at, values in eventful_rows(declared=True)
        ]
        frames = as_frames(rows, range(100, len(rows), 100))
        info, seq = frames[0].source, frames[-1].last_seq + 1
        saved = EventBlock("checkpoint", rows[-1][1], 850, {"path": "/checkpoints/850"})
        frames.append(Frame(info, seq, seq, [saved]))
        with connect(self.server.url.replace("http", "ws") + "/api/v1/agent", compression=None) as socket:
            hello = Hello("frames", "a1-1", "n0", "0.1.0", project="golden", name="an eventful run", sources=[info])
            for message in [hello, *frames]:
                socket.send(encode_message(message))
                decode_message(socket.recv())
        found = self._wait("/runs/frames/incidents", lambda r: len(r["incidents"]) > 3, "incidents are found")
        self._ask("POST", f"/runs/frames/incidents/{quote(found['incidents'][0]['incident_id'])}/ack", {})
        self._ask("PUT", "/runs/frames/detectors", {"settings": {"spike": {"sensitivity": 0.5}}})
        self._wait("/runs/frames/storage", lambda r: r["cold"]["parts"] > 0, "a part is archived")

    def _job(self) -> None:
        """Let two ranks train: a rollback, a look at stacks, an Xid, a death, an ordered restart, and the end."""
        enough = self.home / "enough"
        ranks = self._ranks(enough, 1)
        steps = STEPS_BEFORE
        self._wait("/runs/job", lambda r: (r["last_step"] or 0) > steps, f"step {steps} is there")
        body = {"kind": "rollback", "to_step": BACK_TO, "seed": 7, "reason": "the loss looks odd"}
        self._done(self._ask("POST", "/runs/job/commands", body))
        self._done(self._ask("POST", "/runs/job/commands", {"kind": "dump_stacks", "reason": "a look"}))
        self.nvml.xid(1, 94)
        self._wait("/runs/job/gpus", lambda r: any(gpu["faults"] for gpu in r["gpus"]), "the Xid is known")
        ranks[1].kill()
        found = self._wait(
            "/runs/job/incidents", lambda r: [i for i in r["incidents"] if i["kind"] == "process_death"], "it died"
        )
        death = next(i for i in found["incidents"] if i["kind"] == "process_death")
        time.sleep(3.5)  # what else happened is waited for before a plan says to start again
        restart = self._ask("POST", "/runs/job/commands", {"kind": "restart", "grace_s": 2, "reason": "a rank died"})
        self._wait(f"/runs/job/commands/{restart['command_id']}", lambda c: c["state"] == "acted", "ranks are ended")
        for rank in ranks:
            rank.communicate()
        ranks = self._ranks(enough, restart["to_step"] + 1)
        self._done(restart)
        self._ask("PUT", f"/runs/job/incidents/{quote(death['incident_id'])}/category", {"category": "software_bug"})
        enough.touch()
        for rank in ranks:
            _, error = rank.communicate(timeout=60)
            assert rank.returncode == 0, error
        self._wait("/runs/job", lambda r: r["status"] == "finished" and r["agents"] == 0, "the job is over")

    def _done(self, command: Any) -> None:
        self._wait(f"/runs/job/commands/{command['command_id']}", lambda c: c["state"] == "done", command["kind"])

    def _ranks(self, enough: Path, first: int, **env: str) -> list[subprocess.Popen[str]]:
        facts = os.environ | self.nvml.environ | {
            "STABILITY_URL": f"http://127.0.0.1:{self.talk_port}",
            "STABILITY_DIR": str(self.home / "spool"), "STABILITY_RUN_ID": "job", "STABILITY_NODE": "n0",
            "STABILITY_KMSG": str(self.home / "kmsg"), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        } | env  # fmt: skip
        command = [sys.executable, __file__, "rank", str(self.home / "checkpoints"), str(enough), str(first)]
        ranks = [
            subprocess.Popen(
                command, env=facts | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True, stderr=subprocess.PIPE
            )
            for rank in range(2)
        ]
        self.processes += ranks
        return ranks

    def _spool(self) -> None:
        """Leave the spool of a job that trained without a server; `keep` packs it."""
        tenth = self.home / "checkpoints" / "1010"
        ranks = self._ranks(tenth, 1001, STABILITY_MODE="offline", STABILITY_RUN_ID="offline")
        for rank in ranks:
            _, error = rank.communicate(timeout=60)
            assert rank.returncode == 0, error

    def _keep(self) -> None:
        """Write the samples: first what the server answers, then, once it has ended, what it leaves."""
        answers = {path: self._ask("GET", path) for path in self._paths()}
        key = subprocess.run(
            [sys.executable, "-m", "stabilitybackend.cli", "keys", "create", "golden", "--redis-url",
             self.redis_url],
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        answers["key"] = key.strip()
        _write(self.out / "answers.json.gz", json.dumps(answers, sort_keys=True).encode())
        self.server.stop()
        _write(self.out / "redis.jsonl.gz", b"".join(_dumped(self.redis_url)))
        _write(self.out / "talk.jsonl.gz", "".join(json.dumps(each) + "\n" for each in self.talk.messages).encode())
        self._pack("archive.tar.gz", self.home / "data" / "archive")
        self._pack("spool.tar.gz", self.home / "spool" / "offline")

    def _paths(self) -> Iterator[str]:
        yield from ("/runs", "/detectors", "/gpus", "/interruptions")
        for run in ("frames", "job"):
            about = self.server.get(f"/runs/{run}")
            yield f"/runs/{run}"
            for what in ("segments", "incidents", "checkpoints", "health", "commands", "plan", "gpus", "ledger"):
                yield f"/runs/{run}/{what}"
            for what in ("stacks", "storage", "detectors"):
                yield f"/runs/{run}/{what}"
            metrics = "&".join(f"metric={quote(metric, safe='')}" for metric in about["metrics"])
            for view in ("effective", "all"):
                yield f"/runs/{run}/series?{metrics}&view={view}"

    def _pack(self, name: str, folder: Path) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.add(folder, folder.name)
        _write(self.out / name, buffer.getvalue())


def _short(value: float) -> float:
    """Return a value with few bits, so that the samples are small."""
    return round(value * 256) / 256 if abs(value) < 1e6 else value


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(gzip.compress(data, 9, mtime=0))
    print(f"{path.name}: {path.stat().st_size} bytes")


def _dumped(url: str) -> Iterator[bytes]:
    """Yield a line of JSON for each key, sorted: its type and what it holds, bytes as base64."""
    from redis import Redis

    def text(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(text(key)): text(item) for key, item in sorted(value.items())}
        if isinstance(value, list | tuple | set):
            return [text(item) for item in (sorted(value) if isinstance(value, set) else value)]
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value

    with Redis.from_url(url) as redis:
        readers = {
            b"string": redis.get,
            b"hash": redis.hgetall,
            b"set": redis.smembers,
            b"zset": lambda key: redis.zrange(key, 0, -1, withscores=True),
            b"list": lambda key: redis.lrange(key, 0, -1),
            b"stream": lambda key: redis.xrange(key),
        }
        for key in sorted(redis.keys()):
            kind = redis.type(key)
            line = {"key": key.decode(), "type": kind.decode(), "value": text(readers[kind](key))}
            if kind == b"stream":
                line["groups"] = text([[g["name"], g["last-delivered-id"]] for g in redis.xinfo_groups(key)])
                line["last_id"] = text(redis.xinfo_stream(key)["last-generated-id"])
            yield json.dumps(line).encode() + b"\n"


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank_of_the_job(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        with TemporaryDirectory() as folder:
            asyncio.run(Recording(Path(sys.argv[1]), Path(folder), Path(sys.argv[2])).run())
