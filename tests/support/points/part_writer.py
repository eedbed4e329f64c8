"""Writes one part and says how it went. Run as a process: `python part_writer.py FOLDER ROWS [FILE_LIMIT_BYTES]`."""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))


def main() -> None:
    """Print "writing", then one JSON object: the outcome and the files that are there afterwards."""
    import numpy as np

    from stabilitybackend.base.errors import ArchiveError
    from stabilitybackend.storage.archive.location import LocalFolder
    from stabilitybackend.storage.archive.series import Rows, SeriesKey
    from support.points.archive_model import make_part

    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    if len(sys.argv) > 3:
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
    values = np.random.default_rng(0).standard_normal(count)
    place = LocalFolder(folder)
    print("writing", flush=True)
    try:
        make_part(place, [(SeriesKey("loss", 0, 0, ""), Rows(np.arange(count), values, values))])
        report = {"code": "written"}
    except ArchiveError as error:
        report = {"code": error.code, "message": error.message, "hint": error.hint, "file": error.facts["file"]}
    print(json.dumps({**report, "names": place.names("run")}))


if __name__ == "__main__":
    main()
