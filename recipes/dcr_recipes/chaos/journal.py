"""``chaos.jsonl``: what was done to a run and what became of it, one JSON object a line."""

import json
from dataclasses import dataclass
from pathlib import Path

from dcr_recipes.chaos.recoveries import Recovery, Struck


@dataclass(frozen=True, slots=True)
class Journal:
    """Appends lines; ``at_s`` is seconds since the run's start."""

    path: Path

    def write(self, event: str, at_s: float, **fields: object) -> None:
        """One line, which survives this process."""
        with self.path.open("a") as out:
            out.write(json.dumps({"event": event, "at_s": round(at_s, 3), **fields}) + "\n")

    def struck(self, struck: Struck, version: int) -> None:
        """A fault was carried out while ``version`` was the newest one seen."""
        self.write(
            "fault",
            struck.at,
            number=struck.number,
            kind=str(struck.kind),
            victim=struck.victim,
            pid=struck.pid,
            lasts_s=round(struck.until - struck.at, 3),
            version=version,
        )

    def recovered(self, recovery: Recovery) -> None:
        """A fault is over."""
        struck = recovery.struck
        self.write(
            "recovered",
            struck.at + recovery.seconds,
            number=struck.number,
            kind=str(struck.kind),
            seconds=round(recovery.seconds, 3),
        )
