"""All points of a run: the archived parts, and the newest rows in memory."""
