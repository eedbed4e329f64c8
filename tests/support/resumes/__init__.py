"""Jobs that go back, with what they bring back and what they do not."""
