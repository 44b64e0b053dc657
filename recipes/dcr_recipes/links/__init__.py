"""Links between a node and a server that are as slow, late and unreliable as one asks for."""
