"""What each receiver told of itself, kept in the run folder: methods by rank and the background audit."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dcr.model import ReceiverDiagnosis, from_json, to_json
from dcr.refit.pump import PumpedReceiver
from dcr.transport.durable import replace_durably
from dcr_recipes.commands.diagnosed import by_method
from dcr_recipes.layout import RunFolder

_EVERY_S = 5.0


class TellingReceiver:
    """A ``dcr.refit.background.Examined`` that writes its diagnosis now and then, for the run's summary."""

    def __init__(
        self, agent: PumpedReceiver, path: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._agent = agent
        self._path = path
        self._clock = clock
        self._told_s = float("-inf")

    @property
    def lost(self) -> threading.Event:
        """The agent's."""
        return self._agent.lost

    def examine(self) -> int:
        """The agent's; what it has found is then told, if the last telling is some seconds ago."""
        num_bytes = self._agent.examine()
        if self._clock() - self._told_s >= _EVERY_S:
            self.tell()
        return num_bytes

    def tell(self) -> None:
        """Write the diagnosis."""
        self._path.parent.mkdir(exist_ok=True)
        replace_durably(self._path, to_json(self._agent.diagnose()))
        self._told_s = self._clock()


def figures(folder: RunFolder) -> dict[str, Any]:
    """For ``summary.json``: by receiver, tensors and bytes of each method of each rank, and its audit."""
    found: dict[str, Any] = {}
    for path in sorted(folder.receivers.glob("*.json")):
        diagnosis = from_json(ReceiverDiagnosis, path.read_bytes())
        audit = diagnosis.audit
        found[path.stem] = {
            "ranks": [
                {method: share._asdict() for method, share in by_method(rank).items()}
                for rank in diagnosis.ranks
            ],
            "audit_passes": audit.num_passes,
            "audit_bytes": audit.num_bytes,
            "audit_seconds": audit.seconds,
            "audit_finding": audit.finding.detail if audit.finding is not None else None,
        }
    return found
