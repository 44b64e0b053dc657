"""GRPO's optimizer step on Megatron-core; imports nothing of it until it is used."""
