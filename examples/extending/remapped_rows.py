"""The meaning of the GPU condition of ``node/remapped_rows.py``, for the server: look at it at the next stop."""

from stabilitybackend.hooks import hook
from stabilitybackend.judging.gpus.signs import Meaning


@hook
def gpu_conditions() -> dict[str, Meaning]:
    return {"remapped_rows": Meaning("watch", "hbm", "warning", "memory rows were replaced")}
