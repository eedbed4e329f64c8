"""What ``relaunched_rank.py`` and its test must know alike."""

#: Steps between two checkpoints.
SAVE_EVERY = 8
#: The first attempt of a launch is so many times its number; each rollback begins the next one.
ATTEMPTS = 1_000
#: Later attempts have higher values, so that a value tells its attempt.
ATTEMPT_VALUE = 1_000_000.0
