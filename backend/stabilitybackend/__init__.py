"""The server: stores what agents send, judges it, and serves it to browsers and programs."""
