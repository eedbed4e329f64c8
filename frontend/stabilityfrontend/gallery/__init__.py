"""The gallery: the patterns that curves of training show, each with a real curve, why it happens and what people do."""
