"""Orders that came while nobody owned their run."""
