"""Proof of the persistent source baselines of a run that is not running (DESIGN R3, P9).

Which elements a tracker holds follows from how the recipe's trainer shards: rows in rank order, and
tensors that are whole on every rank at their one owner.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from dcr.audit import EMPTY, combine
from dcr.indexmap import IndexMap
from dcr.model import AuditDigest, AuditTable, Catalogue, TensorSpec
from dcr.source.digests import digest_task, names_of
from dcr.source.task import AffineTask
from dcr.source.tracker_file import TrackerFile
from dcr.source.tracker_index import TrackerIndex, layout_digest, read_any_index
from dcr_recipes.commands.findings import Finding, Verdict, failed, proven, unchecked


def check_trackers(
    folders: Sequence[Path], catalogue: Catalogue, version: int, table: AuditTable
) -> list[Finding]:
    """Findings of every rank's folder, in rank order, and of all ranks together against ``table``.

    What an interrupted fold-in leaves is no fault: its owner repairs it when it resumes (P9).
    """
    names = [f"trackers of rank {rank}" for rank in range(len(folders))]
    indices = [read_any_index(folder / "trackers.json") for folder in folders]
    whole = [index for index in indices if index is not None]
    if len(whole) < len(indices):
        missing = names[indices.index(None)]
        return [unchecked(missing, "no usable index; resume=true rebuilds them from the archive")]
    tasks = _tasks(catalogue, whole)
    found = [
        _check_rank(name, version, (folder, index), (tasks[rank], catalogue.audit_key))
        for rank, (name, folder, index) in enumerate(zip(names, folders, whole, strict=True))
    ]
    if all(finding.verdict is Verdict.PROVEN for finding in found):
        found.append(_check_sum(tasks, whole, table, version))
    return found


def _check_rank(
    name: str, version: int, held: tuple[Path, TrackerIndex], told: tuple[Sequence[AffineTask], str]
) -> Finding:
    """One rank's bytes against its index (``held``); ``told`` are its tasks and the audit key."""
    (folder, index), (tasks, key) = held, told
    if index.held.version > version:
        return failed(name, f"they hold version {index.held.version}, but {version} is committed")
    if index.held.version < version or index.pending is not None:
        return unchecked(
            name, f"a fold-in was interrupted at version {index.held.version}; resume=true completes it"
        )
    if index.layout != layout_digest(tasks, key):
        return unchecked(name, "they are of another layout than the recipe's trainer has")
    file = TrackerFile(folder / "trackers.bin", tasks)
    if not file.is_intact():
        return failed(name, f"{folder / 'trackers.bin'} is missing or not {file.num_bytes} bytes")
    file.open(writable=False)
    for task in tasks:
        if digest_task(key, task, file.view(task)) != index.held.digests[task.key]:
            return failed(
                name, f"{task.name} has other bits than its index says", tensor=task.name, version=version
            )
    return proven(name, f"{len(tasks)} tensors' parts at version {version}, {file.num_bytes} bytes")


def _check_sum(
    tasks: Sequence[Sequence[AffineTask]], indices: Sequence[TrackerIndex], table: AuditTable, version: int
) -> Finding:
    """All parts together are the committed tensors."""
    sums: dict[str, AuditDigest] = dict.fromkeys(table, EMPTY)
    for owned, index in zip(tasks, indices, strict=True):
        for task in owned:
            for name, digest in zip(names_of(task), index.held.digests[task.key], strict=True):
                sums[name] = combine(sums.get(name, EMPTY), digest)
    wrong = sorted(name for name in sums if sums[name] != table.get(name))
    if not wrong:
        return proven("trackers together", f"all {len(table)} tensors are those of the record")
    detail = f"{wrong[0]} has the audit digest {sums[wrong[0]]}, the record says {table.get(wrong[0])}"
    return failed("trackers together", detail, tensor=wrong[0], version=version)


def _tasks(catalogue: Catalogue, indices: Sequence[TrackerIndex]) -> list[list[AffineTask]]:
    """Every rank's tasks in file order, which is the catalogue's."""
    starts: dict[str, int] = defaultdict(int)
    ranks = []
    for rank, index in enumerate(indices):
        owned = [spec for spec in catalogue.tensors if spec.name in index.held.digests]
        ranks.append([_task(spec, rank, index.held.digests[spec.name][0].count, starts) for spec in owned])
    return ranks


def _task(spec: TensorSpec, rank: int, num_elements: int, starts: dict[str, int]) -> AffineTask:
    start = min(starts[spec.name], spec.num_elements)
    num_elements = min(num_elements, spec.num_elements - start)  # an index that claims too much fails
    starts[spec.name] = start + num_elements
    flat = IndexMap.from_block((num_elements,), (start,), (spec.num_elements,))
    return AffineTask(spec.name, spec.name, spec.dtype, num_elements, flat, (rank,), spec.aliases)
