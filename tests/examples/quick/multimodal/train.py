"""Stands in for the training script where a test is about the processes around it: it starts without PyTorch."""

from __future__ import annotations

import time

import stabilityclient

run = stabilityclient.init(project="demo", name="quick")
for step in run.steps(1):
    run.log(step, {"loss": 1.0 / step})
    time.sleep(0.05)
