"""Pictures of a run, from its ``metrics.jsonl`` and ``change_rates.jsonl``."""

from dcr_recipes.plots.draw import draw_all

__all__ = ["draw_all"]
