"""What is checked of engines, each in a process of its own (``apart``)."""

from pathlib import Path

from tests.lanes.sglang.engines import served
from tests.lanes.shared.engine import check_engine


def refits(old: str, folder: str, tp: str, num_refits: str, rate: str = "0.2") -> None:
    """See ``check_engine``."""
    check_engine(served, Path(old), Path(folder), tp=int(tp), num_refits=int(num_refits), rate=float(rate))
