"""Diagnoses of receivers: of a live run, or of a loader that is built and learned here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dcr.errors import ConfigError, RefitError, UnsupportedPath
from dcr.model import AuditProgress, Catalogue, RankDiagnosis, ReceiverDiagnosis, ReceiverState

_ANSWER_S = 60.0
_KEY = "0" * 32


class Share(NamedTuple):
    """Tensors that go one way, and their canonical bytes on that rank."""

    num_tensors: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """By instance; ``away``: why one does not answer or cannot be used. ``is_live``: they are to serve."""

    instances: dict[str, ReceiverDiagnosis]
    away: dict[str, str]
    is_live: bool = True

    @property
    def is_well(self) -> bool:
        """Whether every instance answers, is not EMPTY, and refuses nothing."""
        serving = (d.state is not ReceiverState.EMPTY and not d.rebuilt for d in self.instances.values())
        refusing = any(rank.refusals for d in self.instances.values() for rank in d.ranks)
        return bool(self.instances) and not self.away and not refusing and (all(serving) or not self.is_live)

    def as_json(self) -> dict[str, Any]:
        """Everything, with the totals by method."""
        return {
            "well": self.is_well,
            "away": self.away,
            "instances": [_instance_json(d) for d in self.instances.values()],
        }


def by_method(rank: RankDiagnosis) -> dict[str, Share]:
    """Tensors and bytes of each method, largest first."""
    tensors: Counter[str] = Counter()
    num_bytes: Counter[str] = Counter()
    for choice in rank.tensors.values():
        tensors[choice.method] += 1
        num_bytes[choice.method] += choice.num_bytes
    ordered = sorted(tensors, key=lambda method: (-num_bytes[method], method))
    return {method: Share(tensors[method], num_bytes[method]) for method in ordered}


def of_run(root: Path | None) -> Diagnosed:
    """Ask every receiver of a run.

    Raises:
        ConfigError: there is no run.
    """
    from dcr_recipes.commands.opened import open_run
    from dcr_recipes.processes.serving import runtime_names

    opened = open_run(root)
    instances: dict[str, ReceiverDiagnosis] = {}
    away: dict[str, str] = {}
    with opened.caller() as caller:
        for name in runtime_names(opened.config):
            try:
                instances[name] = caller(name, "diagnose", ReceiverDiagnosis, _ANSWER_S, {})
            except RefitError as err:
                away[name] = str(err)
    return Diagnosed(instances, away)


def of_model(model: str, words: Sequence[str]) -> Diagnosed:
    """Build the runtime of ``model`` in this process, without weights that matter, and learn its loader.

    Raises:
        ConfigError: no such model, or a runtime whose loader lives in processes of its own.
    """
    from dcr.receiver.local import local_writer
    from dcr_adapters.hf import loader as hf
    from dcr_recipes.compose import compose
    from dcr_recipes.models.build import served_config

    config = compose([f"model={model}", *words])
    if config.runtime.name != "hf":
        raise ConfigError(f"runtime={config.runtime.name} is asked while it runs: dcr doctor RUN")
    catalogue = _catalogue(config.model, config.seed)
    loader = hf.build(served_config(config.model), config.runtime.packed, "bfloat16")
    writer = local_writer(loader, catalogue)
    away = {}
    try:
        writer.prewarm()
    except UnsupportedPath as err:
        away[model] = str(err)
    ranks, nothing = writer.diagnose(), AuditProgress()
    diagnosis = ReceiverDiagnosis(model, "", ReceiverState.EMPTY, -1, "", ranks, nothing)
    return Diagnosed({model: diagnosis} if ranks else {}, away, is_live=False)


def _catalogue(model: str, seed: int) -> Catalogue:
    """What a trainer of ``model`` would publish."""
    from dcr_adapters.fsdp.model import canonical_slots
    from dcr_recipes.models.build import masters

    slots = canonical_slots(masters(model, seed), "bfloat16").values()
    return Catalogue(_KEY, _KEY, tuple(slot.spec for slot in slots))


def _instance_json(diagnosis: ReceiverDiagnosis) -> dict[str, Any]:
    found = asdict(diagnosis)
    for entry, rank in zip(found["ranks"], diagnosis.ranks, strict=True):
        entry["methods"] = {method: share._asdict() for method, share in by_method(rank).items()}
    return found
