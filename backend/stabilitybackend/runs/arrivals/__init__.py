"""How frames reach the worker of their run: handed over by the process that stored them, or read from the stream."""
