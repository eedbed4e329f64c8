"""What ``relaunched_rank.py`` and its test must know alike."""

#: Steps between two checkpoints.
SAVE_EVERY = 8
#: Later launches start from higher values, so that a value tells its launch.
LAUNCH_VALUE = 1_000_000.0
