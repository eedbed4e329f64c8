"""``stabilityboard drill``: whether a job that is stopped and resumed goes on as if nothing had happened."""
