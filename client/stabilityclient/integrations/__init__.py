"""Training frameworks, one file each: what owns the loop obeys too. A file imports its framework, this one nothing."""
