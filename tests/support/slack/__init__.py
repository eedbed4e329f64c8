"""A Slack of our own: its Web API, its Socket Mode and its signed requests, over real sockets."""
