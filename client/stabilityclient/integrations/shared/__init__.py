"""What the integrations of several frameworks use. Nothing here imports a framework but `torch_state`."""
