"""What a launch of the job is: commit, command line, host, launcher. Collected by the agent, without secrets."""
