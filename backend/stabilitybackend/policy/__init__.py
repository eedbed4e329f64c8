"""What is decided about runs, without I/O: commands, incidents and advice."""
