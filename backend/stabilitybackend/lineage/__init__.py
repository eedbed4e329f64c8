"""Which segment every point belongs to: a tree of segments and the fold that grows it from the stored frames."""
