"""The agents' door: connections, checks of what they send, and storing frames exactly once."""
