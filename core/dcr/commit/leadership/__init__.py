"""Which of several coordinators is the active one, behind one port."""
