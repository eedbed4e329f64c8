"""Who may do what: keys, sessions, signed-in people, origins, the audit log."""
