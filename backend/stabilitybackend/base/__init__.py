"""Base of the server process: tasks and slices of long work, its memory, and its log lines."""
