"""What a refit consisted of: seconds by stage, entropy bounds of its payloads, changes by tensor.

Only for people: no step depends on it. Rank 0 asks once after each refit, and the payloads are read back
from the archive.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from dcr.codec.inspect import PayloadInspection, inspect_payload, total
from dcr.model import Manifest, from_json
from dcr.transport.base import Archive
from dcr_recipes.summary import MetricsLog, Row
from dcr_recipes.trace.seconds import StageClock


@dataclass(frozen=True, slots=True)
class StepDetails:
    """``archive`` None: a dense refit, which has no payloads; ``clock`` None: no stages are recorded.

    ``change_rates`` gets a row per step, ``changed``: tensor -> [changed elements, elements].
    """

    change_rates: Path
    archive: Archive | None = None
    clock: StageClock | None = None

    def columns(self, step: int, manifest: str, *, timed: bool) -> Row:
        """Columns of the step's row, for the refit whose manifest has that digest ("": dense).

        Not ``timed``: a crash came in between, and no seconds can be told.
        """
        row: Row = {}
        if self.clock is not None:
            seconds = self.clock.take()
            row |= {f"refit/{name}_s": value if timed else None for name, value in seconds.items()}
        if self.archive is not None and manifest:
            row |= self._payloads(step, self.archive, manifest)
        return row

    def cut(self, last_step: int) -> None:
        """Drop what later steps left behind that are repeated now."""
        MetricsLog(self.change_rates).cut(last_step)

    def _payloads(self, step: int, archive: Archive, digest: str) -> Row:
        manifest = from_json(Manifest, archive.get_object("manifest", digest))
        found = [inspect_payload(archive.get_payload(manifest, ref)) for ref in manifest.payloads]
        changed = {name: list(counts) for name, counts in count_by_tensor(found).items()}
        version = manifest.attempt.version
        MetricsLog(self.change_rates).append({"step": step, "version": version, "changed": changed})
        items = [item for payload in found for item in payload.items]
        locations, values = total([i.locations for i in items]), total([i.values for i in items])
        return {
            "refit/location_bytes": round(locations.stored_bytes),
            "refit/value_bytes": round(values.stored_bytes),
            "refit/location_bound_bytes": locations.bound_bits / 8,
            "refit/value_bound_bytes": values.bound_bits / 8,
            "refit/entropy_bound_bytes": (locations.bound_bits + values.bound_bits) / 8,
        }


def count_by_tensor(payloads: list[PayloadInspection]) -> dict[str, tuple[int, int]]:
    """Changed elements and all elements of each tensor that changed, by name, in order of first item."""
    changed: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for payload in payloads:
        for item in payload.items:
            changed[item.name] += item.num_entries
            sizes[item.name] = item.num_elements
    return {name: (changed[name], sizes[name]) for name in sizes}
