"""What a rank shows of itself while it runs: slot, phases, heartbeat, and answers to the agent's questions."""
