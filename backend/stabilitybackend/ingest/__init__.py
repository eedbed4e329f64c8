"""The gateway: connections, checks of what they send, and storing frames exactly once."""
