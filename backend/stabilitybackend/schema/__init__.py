"""The words of the domain as types: what agents send (events, Health) and what the server finds (incidents)."""
