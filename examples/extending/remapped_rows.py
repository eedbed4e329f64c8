"""What the GPU condition of ``node/remapped_rows.py`` means, for the server: look at it at the next stop."""

from stabilitybackend.judging.gpus.signs import Meaning, register

register("remapped_rows", Meaning("watch", "hbm", "warning", "memory rows were replaced"))
