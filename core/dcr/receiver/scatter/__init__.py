"""Learned placement at work: changes go from canonical positions straight to storage (DESIGN B2).

``plan`` compiles the boxes that prewarm learned; ``engine`` runs batches of items through it with
``numba_engine``, ``numpy_engine`` or ``torch_engine``, whose results are equal; ``reader`` reads back.
"""
