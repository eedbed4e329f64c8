"""What tests of the client and its agent share: a gateway, jobs, spools, a node with GPUs."""
