"""Whether a run went on as it should: after each fork the new branch is compared with the one that it left."""
