"""The parts of a server that is several processes: what a door does without a worker beside it, and the reverse.

One process that does all (``up`` alone) needs none of this: its door and its workers call each other.
"""
