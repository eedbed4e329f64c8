"""Authentication and rights: keys, sessions, signed-in users, origins, the audit log."""
