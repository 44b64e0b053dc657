"""Ranks in the worker processes of an inference engine, behind its one line to all of them (DESIGN P11).

Worker side: ``rank_server``, ``turns``. Front side: ``ranks``, ``gate``, ``loop``, ``line``.
What crosses: ``messages``, ``exchange``.
An engine's adapter implements ``control.EngineControl`` and a native loader.
"""
