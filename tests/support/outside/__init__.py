"""What stands outside of the server: Alertmanager, and those who get messages."""
