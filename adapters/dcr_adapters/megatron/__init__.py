"""Megatron-core and Megatron-Bridge as a trainer (DESIGN R4, R20, B1)."""
