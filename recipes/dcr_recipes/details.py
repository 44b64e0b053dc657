"""What a refit consisted of: seconds by stage, entropy bounds of its payloads, changes by tensor.

Only for people: no step depends on it. Rank 0 asks once after each refit, and the payloads are read back
from the archive.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dcr.codec.inspect import PayloadInspection, inspect_payload, total
from dcr.errors import MissingObject
from dcr.model import Catalogue, Manifest, from_json
from dcr.transport.base import Archive
from dcr_recipes.summary import MetricsLog, Row
from dcr_recipes.trace.accounting import BOUNDS
from dcr_recipes.trace.seconds import StageClock
from dcr_recipes.traffic import TrafficMeter

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepDetails:
    """``archive`` None: a dense refit, which has no payloads; ``clock`` None: no stages are recorded.

    ``traffic`` None: payloads are not counted in the store. ``change_rates`` gets a row per step,
    ``changed``: tensor -> [changed elements, elements]; none for a step whose payloads are pruned already.
    """

    change_rates: Path
    archive: Archive | None = None
    clock: StageClock | None = None
    traffic: TrafficMeter | None = None

    def columns(self, step: int, version: int, manifest: str, *, timed: bool) -> Row:
        """Columns of the step's row, for the refit whose manifest has that digest ("": dense).

        Not ``timed``: a crash came in between, and no seconds can be told.
        """
        row: Row = {}
        if self.clock is not None:
            seconds = self.clock.take()
            row |= {f"refit/{name}_s": value if timed else None for name, value in seconds.items()}
            found = self.clock.accounting(version) if timed else None
            row |= {f"{BOUNDS}{name}": value for name, value in (found.columns() if found else {}).items()}
        if self.traffic is not None:
            row |= {f"refit/{name}": value for name, value in self.traffic.take().items()}
        if self.archive is not None and manifest:
            row |= self._payloads(step, self.archive, manifest)
        return row

    def begin(self, last_step: int) -> None:
        """Go on after ``last_step``: what later steps left behind is dropped."""
        MetricsLog(self.change_rates).cut(last_step)

    def start(self) -> None:
        """A refit begins: nothing that processes did before counts for it."""
        if self.clock is not None:
            self.clock.take()
        if self.traffic is not None:
            self.traffic.take()

    def _payloads(self, step: int, archive: Archive, digest: str) -> Row:
        manifest = from_json(Manifest, archive.get_object("manifest", digest))
        try:
            found = [inspect_payload(archive.get_payload(manifest, ref)) for ref in manifest.payloads]
        except MissingObject as err:  # with chain.keep_versions=1 an anchor replaces them at once
            logger.info("step %d: its payloads are not kept, so nothing is told of them: %s", step, err)
            return {}
        catalogue = from_json(Catalogue, archive.get_object("catalogue", manifest.catalogue))
        changed = count_by_tensor(catalogue, found)
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


def count_by_tensor(catalogue: Catalogue, payloads: Sequence[PayloadInspection]) -> dict[str, list[int]]:
    """[changed elements, elements] of every tensor under its primary name, unchanged ones included.

    Of absolute values all count as changed.
    """
    changed: Counter[str] = Counter()
    for payload in payloads:
        for item in payload.items:
            changed[item.name] += item.num_changed
    return {spec.name: [changed[spec.name], spec.num_elements] for spec in catalogue.tensors}
