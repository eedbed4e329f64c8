"""What assistants ask about the runs: an MCP server beside the program, which asks a running server over HTTP."""
