"""Jobs that tests tell a server of."""
