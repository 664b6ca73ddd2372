"""Floor 0: what Linux gives. Knows no lock and no layout."""
