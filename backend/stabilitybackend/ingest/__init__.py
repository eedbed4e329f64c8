"""The gateway: connections, checks of their messages, and storage of frames exactly once."""
