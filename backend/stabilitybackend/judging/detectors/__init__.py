"""What runs on every run: one file a detector, and the registry of all."""
