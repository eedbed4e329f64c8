"""Notes the product's functions that a process enters, per phase; imported at the start of `journeys.py`'s processes.

``$JOURNEY_DIR/phase`` names the phase; a phase that ends is written as ``PHASE.PID.json``: role and (file, function).
"""

import json
import os
import sys
import threading
import time
from types import CodeType, FrameType
from typing import Any

_PACKAGES = ("stabilityclient", "stabilitybackend", "stabilityalerting", "stabilityfrontend", "stabilityplugins")
_entered: set[CodeType] = set()


def _note(frame: FrameType, event: str, _: Any) -> None:
    if event == "call":
        _entered.add(frame.f_code)


def _role() -> str:
    words = " ".join(sys.orig_argv)
    return "server" if "stabilitybackend" in words else "agent" if "stabilityclient" in words else "trainer"


def _write(folder: str, phase: str) -> None:
    found = []
    for code in [*_entered]:
        parts = code.co_filename.split("/")
        package = next((index for index, part in enumerate(parts) if part in _PACKAGES), None)
        if package is not None:
            found.append(("/".join(parts[package:]), code.co_qualname if sys.version_info >= (3, 11) else code.co_name))
    path = os.path.join(folder, f"{phase}.{os.getpid()}.json")
    with open(path + ".part", "w") as file:
        json.dump([_role(), found], file)
    os.replace(path + ".part", path)


def _follow(folder: str) -> None:
    sys.setprofile(None)
    phase = ""
    while True:
        time.sleep(0.02)
        with open(os.path.join(folder, "phase")) as file:
            now = file.read()
        if now and now != phase:
            if phase:
                _write(folder, phase)
            _entered.clear()
            phase = now


if os.environ.get("JOURNEY_DIR"):
    threading.Thread(target=_follow, args=(os.environ["JOURNEY_DIR"],), daemon=True).start()
    threading.setprofile(_note)
    sys.setprofile(_note)
