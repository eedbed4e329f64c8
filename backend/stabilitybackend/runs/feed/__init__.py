"""The live feed of a run: its messages, made once and sent to every browser."""
