"""What the pages promise, in Chromium: one line for each figure, with its aim, met or missed, and the load meanwhile.

    python benchmarks/page_figures.py                 # all of it, half an hour
    python benchmarks/page_figures.py --quick         # fewer and shorter ones, 4 to 5 minutes
    python benchmarks/page_figures.py --only zoom --only list

It starts a server, feeds it a run of 10 M points, one of 600 metrics, a job that logs 20 metrics five times a second,
and 5,000 runs. Times are from the navigation (or the click) to the frame with what was wanted, as the page's own clock
has them. The floor beside a figure is the same of the least that could be: the login page of the same server, the
answer without a chart, an empty page. CPU is that of all of Chromium's processes as the kernel counts it, so that it
says the same on a busy machine; wall times there are longer, which is why the load stands beside them.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from parts.chromium import CHROMIUM
from parts.page_bench import Bench
from parts.page_charts import first_charts, first_charts_slow, live_charts, resting, zooms
from parts.page_figure import HEAD, Figure
from parts.page_lists import MANY_RUNS, fill, run_lists, scrolled_metrics
from parts.page_tabs import many_tabs, shared_charts
from parts.server_process import ServerProcess

#: What can be measured, by its name for ``--only``, in this order.
LINES: dict[str, Callable[[Bench], list[Figure]]] = {
    "open": first_charts, "slow": first_charts_slow, "zoom": zooms, "scroll": scrolled_metrics, "idle": resting,
    "shared": shared_charts, "tabs": many_tabs, "charts": live_charts, "list": run_lists,
}  # fmt: skip
#: Newest of the 5,000 runs whose job is under way.
LIVE_RUNS = 20


def main() -> int:
    """Measure, print, and return 0 when all aims are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=LINES, help="this one; repeat it")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter measurements")
    parser.add_argument("--keep", type=Path, help="folder for the runs; what is there from before is used again")
    parser.add_argument("--steps", type=int, default=830_000, help="of the long run; the default makes 10 M points")
    parser.add_argument("--chromium", default=CHROMIUM)
    options = parser.parse_args()
    wanted = options.only or list(LINES)
    missed, begin = list[str](), time.monotonic()
    print(HEAD)
    with tempfile.TemporaryDirectory(prefix="page-figures-") as temporary:
        for names, folder, fed in ((set(LINES) - {"list"}, "runs", False), ({"list"}, "list", True)):
            chosen = [name for name in LINES if name in wanted and name in names]
            if not chosen:
                continue
            with _server((options.keep or Path(temporary)) / folder, fed) as server:
                bench = Bench(server, Path(temporary), options.quick, options.chromium, options.steps)
                for name in chosen:
                    for figure in LINES[name](bench):
                        print(figure.line(), flush=True)
                        missed += [] if figure.met else [figure.what]
    print(f"{time.monotonic() - begin:.0f} s; aims: {'all met' if not missed else 'MISSED: ' + '; '.join(missed)}")
    return 1 if missed else 0


@contextlib.contextmanager
def _server(data: Path, many: bool) -> Iterator[ServerProcess]:
    """A server on its data; with ``many``, one that has 5,000 runs and took up those that are live when it started."""
    server = ServerProcess(data)
    if many and not data.exists():
        with server:
            fill(data / "redis.sock", MANY_RUNS, LIVE_RUNS)
    with server:
        yield server


if __name__ == "__main__":
    sys.exit(main())
