"""Dead processes: one incident for each death of the job, with its cause. Pure."""
