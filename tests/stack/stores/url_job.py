"""A rank that saves to an object store and restores from it: ``python url_job.py ENDPOINT STOP_FILE``."""

from __future__ import annotations

import io
import os
import sys
import time

import torch
from obstore.store import S3Store

import stabilityclient


def main() -> None:
    endpoint, stop = sys.argv[1:]
    store = S3Store("bucket", endpoint=endpoint, client_options={"allow_http": True})
    run = stabilityclient.init(project="tests", name="saves to S3")
    weights = torch.zeros(1_000)

    def load(step: int) -> torch.Tensor:
        found = torch.load(io.BytesIO(bytes(store.get(f"run/step-{step}.pt").bytes())))
        assert isinstance(found, torch.Tensor)
        return found

    @run.on_rollback
    def restore(rollback: stabilityclient.Rollback) -> None:
        weights.copy_(load(rollback.to_step))
        assert float(weights[0]) == rollback.to_step

    first = step = 1
    while not os.path.exists(stop):
        for step in run.steps(first, 1_000_000):
            weights += 1
            time.sleep(0.02)
            run.log(step, {"loss": 2_000.0 - float(weights[0])})
            if step in (10, 20):
                file = io.BytesIO()
                torch.save(weights, file)
                data = file.getvalue()
                store.put(f"run/step-{step}.pt", data if step == 10 else data[: len(data) // 2])  # that of 20 is torn
                run.checkpoint(step, f"s3://name:password@bucket/run/step-{step}.pt?X-Amz-Signature=1f")
            if os.path.exists(stop):
                break
        first = step + 1
    run.finish()


if __name__ == "__main__":
    main()
