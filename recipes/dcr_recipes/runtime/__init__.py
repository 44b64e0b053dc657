"""Serving processes: what they answer, what they need of an engine, and how others call them."""
