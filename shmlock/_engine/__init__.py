"""Floor 2: how waiting works."""
