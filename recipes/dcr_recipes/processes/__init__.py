"""Entry points of a run's processes: ``python -m dcr_recipes.processes.<role> RUN_DIR INDEX``."""
