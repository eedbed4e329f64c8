"""Code shared by the integrations of several frameworks. Nothing here imports a framework but `torch_state`."""
