"""What agents send, as types: one Struct for each kind of event, and for each word of Health."""
