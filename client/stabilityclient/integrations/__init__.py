"""Training frameworks, one file each: the loop's owner obeys too. A file imports its framework, this one nothing."""
