"""Several server processes: roles, relay between them, membership."""
