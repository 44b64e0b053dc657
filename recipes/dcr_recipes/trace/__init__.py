"""What the processes of a run did and when: written by each, merged into one Chrome trace."""
