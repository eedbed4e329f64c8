"""Orders before they are commands: proposals, which wait for a person's approval."""
