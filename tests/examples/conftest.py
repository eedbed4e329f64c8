"""The example's modules, importable by their own names, as torchrun sees them."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
JOB_FOLDER = REPOSITORY / "examples" / "multimodal"

sys.path.insert(0, str(JOB_FOLDER))
