"""The gallery: patterns in curves of training, each with a real curve, its cause and its remedy."""
