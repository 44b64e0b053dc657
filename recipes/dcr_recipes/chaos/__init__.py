"""``dcr chaos``: the tiny recipe under random faults of its processes, and what they must not change (B4)."""
