"""Group Relative Policy Optimization on a small scale: enough to change weights for good reasons."""
