"""The address that a browser has: a path before ours, and names that are not ours."""
