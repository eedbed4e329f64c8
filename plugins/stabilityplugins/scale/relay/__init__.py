"""Service of a process of pages for runs that other processes own: passes requests and feeds to the owner."""
