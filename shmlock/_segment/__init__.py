"""Floor 1: what the bytes mean. Knows no policy."""
