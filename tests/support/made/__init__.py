"""What every server makes alike when it starts, made once for those of a process, and of its forks."""
