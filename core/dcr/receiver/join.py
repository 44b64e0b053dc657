"""What the ranks of an instance can take together (paper section 6.1, DESIGN R6, R11, P11)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dcr.errors import UnsupportedPath
from dcr.model import Classification, PathClass, RankDiagnosis, TensorChoice, TensorSpec, width_bytes
from dcr.receiver.parts import Parts, divide, held
from dcr.receiver.rank import Cover, RankPath, RankPlacement

_ORDER = (PathClass.SKIP, PathClass.XOR, PathClass.OVERWRITE, PathClass.REFUSED)
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Joined:
    """``classes`` has every catalogue name; ``parts`` those of which some rank holds something.

    ``refusals`` say tensor, rank and reason; not empty means that no delta may be applied.
    """

    classes: Classification
    parts: dict[str, Parts]
    refusals: tuple[str, ...]

    def require_supported(self) -> None:
        """Raise UnsupportedPath with everything that any rank refuses."""
        if self.refusals:
            num = len(self.refusals)
            more = f"; and {num - _SHOWN} more" if num > _SHOWN else ""
            raise UnsupportedPath(
                f"the loader cannot take deltas, {num} refusals: {'; '.join(self.refusals[:_SHOWN])}{more}. "
                "Use dense refits, or a loader configuration that copies these tensors unchanged"
            )

    def shares(self, rank: int) -> dict[str, tuple[Cover, ...]]:
        """What ``RankPort.divide`` needs to be told: tensors of which ``rank`` holds several parts."""
        return {
            name: parts.of_rank[rank] for name, parts in self.parts.items() if len(parts.of_rank[rank]) > 1
        }


def join(placements: Sequence[RankPlacement], specs: Mapping[str, TensorSpec]) -> Joined:
    """Join the answers of all ranks to prewarm: most restrictive class, complete cover, every refusal."""
    classes: Classification = {}
    parts: dict[str, Parts] = {}
    refusals = [
        f"{name} ({_rank(r, placements)}): {reason}"
        for r, placement in enumerate(placements)
        for name, reason in sorted(placement.refusals.items())
    ]
    for name, spec in specs.items():
        paths = [placement.paths[name] for placement in placements]
        found = [f"{name} ({_rank(r, placements)}): {p.refusal}" for r, p in enumerate(paths) if p.refusal]
        divided = divide(spec.num_elements, tuple(path.cover for path in paths))
        found = found or _incomplete(name, spec, paths, divided)
        classes[name] = PathClass.REFUSED if found else _class(paths)
        refusals += found
        if divided.holders and not found:
            parts[name] = divided
    return Joined(classes, parts, tuple(refusals))


def diagnose(
    placements: Sequence[RankPlacement], specs: Mapping[str, TensorSpec]
) -> tuple[RankDiagnosis, ...]:
    """For people: what each rank does with what it holds or refuses, and why."""
    return tuple(
        RankDiagnosis(
            rank=rank,
            tensors={
                name: _choice(path, specs[name])
                for name, path in placement.paths.items()
                if path.cover or path.refusal
            },
            guards=placement.guards,
            refusals={
                **placement.refusals,
                **{n: p.refusal for n, p in placement.paths.items() if p.refusal},
            },
        )
        for rank, placement in enumerate(placements)
    )


def _choice(path: RankPath, spec: TensorSpec) -> TensorChoice:
    num_bytes = held(path.cover, spec.num_elements) * width_bytes(spec.dtype)
    return TensorChoice(path.method.value, path.path, num_bytes, path.reason)


def _rank(rank: int, placements: Sequence[RankPlacement]) -> str:
    return f"rank {rank} of {len(placements)}"


def _incomplete(name: str, spec: TensorSpec, paths: Sequence[RankPath], parts: Parts) -> list[str]:
    if not parts.num_missing or (not parts.holders and all(path.skipped for path in paths)):
        return []
    if not parts.holders:
        silent = [rank for rank, path in enumerate(paths) if not path.skipped]
        return [f"{name}: no rank places it, and ranks {silent} do not say that this is on purpose"]
    return [
        f"{name}: {parts.num_missing} of its {spec.num_elements} elements lie on none of {len(paths)} ranks"
    ]


def _class(paths: Sequence[RankPath]) -> PathClass:
    """Most restrictive over the ranks that hold something."""
    return max((path.path for path in paths if path.cover), key=_ORDER.index, default=PathClass.SKIP)
