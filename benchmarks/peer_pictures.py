"""What each tracker's own page shows of one training with a spike, a NaN, a rollback and a hang: pictures side by side.

    python benchmarks/peer_pictures.py --to docs/images/peers [--peers-python PATH] [--only ours,aim]

One real job (parts/peers_job.py) logs the same rows to all: to ours and TensorBoard itself, to MLflow, Aim and Trackio
through a process of their own that gets its rows as they come. Then each tracker's own server shows its own page, as it
is after a click on the run, in Chromium at 1280 x 800. Nothing is zoomed, smoothed or set. ``--peers-python`` is the
interpreter of an environment with ``requirements/peers.txt`` (default: STABILITY_PEERS_PYTHON), for MLflow and Aim.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import httpx
from parts.server_process import ServerProcess, free_port
from playwright.sync_api import Browser, sync_playwright

PARTS = Path(__file__).parent / "parts"
CHROMIUM = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
VIEWPORT = {"width": 1280, "height": 800}
START_S = 240.0
#: A hang is an incident some ten seconds after the last step; then each page has time to draw.
HANG_SEEN_S = 40.0
SETTLED_MS = 30_000
PEERS = ("mlflow", "aim", "trackio")


def server_command(name: str, python: str, folder: Path, port: int) -> list[str]:
    """Return what starts a tracker's own server on its data."""
    if name == "tensorboard":
        return [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder / "logs"), "--port", str(port)]
    if name == "mlflow":
        store = f"sqlite:///{folder / name / 'mlflow.db'}"
        return [python, "-m", "mlflow", "ui", "--backend-store-uri", store, "--port", str(port)]
    if name == "aim":
        return [str(Path(python).with_name("aim")), "up", "--repo", str(folder / name), "--port", str(port), "--yes"]
    show = f"import trackio; trackio.show(project='peers', open_browser=False, block_thread=True, server_port={port})"
    return [python, "-c", show]


@contextlib.contextmanager
def its_server(name: str, python: str, folder: Path) -> Iterator[str]:
    """Run a tracker's server; yield its address once it answers."""
    port = free_port()
    env = os.environ | {"TRACKIO_DIR": str(folder / "trackio"), "GRADIO_SERVER_PORT": str(port), "DO_NOT_TRACK": "1"}
    with open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(server_command(name, python, folder, port), env=env, stdout=log, stderr=log)
        try:
            end = time.monotonic() + START_S
            while time.monotonic() < end and process.poll() is None:
                with contextlib.suppress(httpx.HTTPError):
                    if httpx.get(f"http://127.0.0.1:{port}/", timeout=5).status_code < 500:
                        yield f"http://127.0.0.1:{port}"
                        return
                time.sleep(0.5)
            raise SystemExit(f"the server of {name} did not answer: {Path(log.name).read_text()[-2000:]}")
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()


def picture(browser: Browser, url: str, to: Path) -> None:
    """Open a page, let it draw, and take its picture."""
    page = browser.new_page(viewport=VIEWPORT)
    page.goto(url)
    page.wait_for_timeout(SETTLED_MS)
    page.screenshot(path=to)
    page.close()
    print(f"{to}")


def main() -> int:
    """Train, show, take the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--to", type=Path, default=Path("docs/images/peers"))
    parser.add_argument("--peers-python", default=os.environ.get("STABILITY_PEERS_PYTHON", sys.executable))
    parser.add_argument("--only", default="ours,tensorboard,mlflow,aim,trackio", help="pages to take pictures of")
    parser.add_argument("--chromium", default=os.environ.get("STABILITY_CHROMIUM", "/usr/bin/chromium"))
    options = parser.parse_args()
    options.to.mkdir(parents=True, exist_ok=True)
    wanted = options.only.split(",")
    with tempfile.TemporaryDirectory() as name, ServerProcess(Path(name) / "data") as server:
        take_all(Path(name), server, wanted, options)
    return 0


def take_all(folder: Path, server: ServerProcess, wanted: list[str], options: argparse.Namespace) -> None:
    """Run the job with all trackers, then show one after the other."""
    env = os.environ | {
        "STABILITY_URL": server.url, "STABILITY_DIR": str(folder / "spool"), "STABILITY_RUN_ID": "peers",
        "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
    }  # fmt: skip
    job = subprocess.Popen(
        [sys.executable, str(PARTS / "peers_job.py"), str(folder / "logs")], env=env, stdout=subprocess.PIPE, text=True
    )
    feeders: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in (one for one in PEERS if one in wanted):
            (folder / name).mkdir()
            command = [_python(name, options), str(PARTS / "peer_feeders.py"), name, str(folder / name)]
            feeders[name] = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, text=True)
        assert job.stdout is not None
        pipes: list[IO[str]] = [feeder.stdin for feeder in feeders.values() if feeder.stdin is not None]
        for line in job.stdout:
            for pipe in pipes:
                pipe.write(line)
            if not line.startswith("{"):
                break
        for pipe in pipes:
            pipe.flush()
        time.sleep(HANG_SEEN_S)
        show_all(folder, server, wanted, options)
    finally:
        for process in (job, *feeders.values()):
            process.kill()
            process.wait()


def show_all(folder: Path, server: ServerProcess, wanted: list[str], options: argparse.Namespace) -> None:
    """Take a picture of each page that is wanted."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=CHROMIUM)
        for name in wanted:
            if name == "ours":
                picture(browser, f"{server.url}/runs/peers", options.to / "ours.png")
                continue
            address = "/?tagFilter=%5Eloss%24#timeseries" if name == "tensorboard" else _address(folder / name)
            with its_server(name, _python(name, options), folder) as url:
                picture(browser, url + address, options.to / f"{name}.png")
        browser.close()


def _python(name: str, options: argparse.Namespace) -> str:
    """Return the interpreter that has a tracker."""
    return str(options.peers_python) if name in ("mlflow", "aim") else sys.executable


def _address(folder: Path) -> str:
    """Return where a tracker's page is, once all rows are logged."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        if (folder / "address").exists():
            return (folder / "address").read_text()
        time.sleep(0.5)
    raise SystemExit(f"{folder.name} did not log all rows within ten minutes")


if __name__ == "__main__":
    raise SystemExit(main())
