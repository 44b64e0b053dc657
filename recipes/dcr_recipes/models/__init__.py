"""What can be trained: the tiny random model, the pretrained demo model, and any local checkpoint."""
