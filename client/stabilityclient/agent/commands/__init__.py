"""Commands on the node: to its ranks, and those that the agent itself carries out."""
