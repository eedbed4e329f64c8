"""What a process of pages does for runs that other processes own: passes requests and feeds on to the owner."""
