"""Domain types: events and Health from agents, findings and incidents from the server."""
