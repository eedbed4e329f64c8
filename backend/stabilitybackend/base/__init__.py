"""What the server process does for itself: tasks and slices of long work, its memory, and its log lines."""
