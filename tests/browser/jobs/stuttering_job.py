"""A job that logs steps 1 to 60, then 30 to 80 without a word about why: it looks like a restart, and is none."""

from __future__ import annotations

import stabilityclient


def main() -> None:
    run = stabilityclient.init(project="browser", name="stuttering")
    for step in [*range(1, 61), *range(30, 81)]:
        run.log(step, {"loss": 2.0 + 1.0 / step})
    run.finish()


main()
