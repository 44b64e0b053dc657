"""Benchmarks (issue of the smallest payload, DESIGN R21): each table has its ceiling from the same run.

Figures are CPU seconds and bytes: bytes repeat exactly, CPU seconds within some percent on a shared machine.
"""
