"""The smallest job that Stabilityboard can watch and put back. Start a server (``make up``), then run this."""

import random
import time

import stabilityclient

run = stabilityclient.init(project="examples", name="minimal")
run.on_rollback(lambda rollback: print(f"going back to step {rollback.to_step}"))  # nothing to restore in this one
for step in run.steps(1, 1001):
    run.log(step, {"loss": 2.0 / step**0.1 + random.gauss(0, 0.01), "lr": 1e-3})
    time.sleep(0.02)  # the training
    if step % 100 == 0:
        run.checkpoint(step, __file__)  # any path that exists
run.finish()
