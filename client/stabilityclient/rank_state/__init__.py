"""State that a rank shows while it runs: slot, phases, heartbeat, and answers to the agent's questions."""
