"""Commands about who may do what, and who did: keys, the audit log, proposals, assistants."""
