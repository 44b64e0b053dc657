"""Starting, watching and restarting the processes of a run."""
