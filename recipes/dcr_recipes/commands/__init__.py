"""Commands that look at a run from the outside: one module each, with ``add`` and what it runs.

Their modules import light at the top, so that ``dcr --help`` stays quick.
"""
