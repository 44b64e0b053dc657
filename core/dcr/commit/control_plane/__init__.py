"""Control planes behind one port."""
