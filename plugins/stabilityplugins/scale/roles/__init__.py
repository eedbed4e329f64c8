"""Parts of a server of several processes: a door without a worker in its process, and the reverse.

One process that does all (``up`` alone) needs none of this: its door and its workers call each other.
"""
