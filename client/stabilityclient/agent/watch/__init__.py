"""What the agent sees of the node's ranks from outside: ends, memory, kernel log, stacks."""
