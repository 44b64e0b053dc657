"""A committed version as a Hugging Face safetensors checkpoint, from anchor and chain (DESIGN B5).

Memory is bounded: one file's tensors are rebuilt at a time, so the chain is read once for each file.
Tied tensors are written once, under their primary name, as Hugging Face does.
"""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from dcr import observe
from dcr.errors import ConfigError, StoreError
from dcr.model import Catalogue, CommitRecord, TensorSpec, new_nonce
from dcr.transport.base import Archive
from dcr.transport.chain import chain
from dcr.transport.durable import sync_path
from dcr.transport.replay import Tensors, replay_tensors

_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int16": "I16", "uint16": "U16", "float16": "F16", "bfloat16": "BF16",
    "int32": "I32", "uint32": "U32", "float32": "F32", "int64": "I64", "uint64": "U64", "float64": "F64",
}  # fmt: skip
"""Element types as the safetensors format names them."""
_ALIGNMENT = 8
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"

Advance = Callable[[int, int], None]
"""Told (payloads read, of how many)."""
Beside = Callable[[Path], None]
"""Writes into the folder what stands beside the weights; OSError ends the export."""


def _nothing(_folder: Path) -> None:
    """Weights only."""


def export_version(  # noqa: PLR0913 -- two of them are hooks
    archive: Archive,
    record: CommitRecord,
    catalogue: Catalogue,
    *,
    out: Path,
    file_bytes: int,
    beside: Beside = _nothing,
    advance: Advance | None = None,
) -> list[Path]:
    """Write ``record``'s version into the new folder ``out``, in files of about ``file_bytes``; their paths.

    Every tensor is proven against the record's audit table before it is written, and ``out`` appears
    when all of it is on disk, what ``beside`` writes included.

    Raises:
        ConfigError: ``out`` exists.
        IntegrityError: the version cannot be rebuilt or proven.
        StoreError: the store or the disk failed.
    """
    if out.exists():
        raise ConfigError(f"--out: {out} exists; name a folder that does not")
    staged = out.with_name(f".{out.name}.{new_nonce()}")
    groups = _groups(catalogue.tensors, file_bytes)
    names = _file_names(len(groups))
    num_payloads = sum(len(manifest.payloads) for manifest in chain(archive, record))
    try:
        staged.mkdir(parents=True)
        counter = _Counter(num_payloads * len(groups), advance)
        with archive.reading(record.version) as keep, observe.listening(counter):
            for name, group in zip(names, groups, strict=True):
                wanted = [spec.name for spec in group]
                tensors = replay_tensors(archive, record, catalogue, wanted, look=keep)
                _write(staged / name, group, tensors)
                keep()  # a file may take long, and what nobody reads is pruned
        if len(groups) > 1:
            _write_index(staged / INDEX, names, groups)
        beside(staged)
        for path in staged.iterdir():
            sync_path(path)
        sync_path(staged)
        staged.rename(out)
        sync_path(out.parent)
    except OSError as err:
        raise StoreError(f"cannot write {out}: {err.strerror or err}; correct this, or name another") from err
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return [out / name for name in names]


class _Counter:
    """A listener that counts payloads as they are read."""

    def __init__(self, total: int, advance: Advance | None) -> None:
        self._total, self._advance, self._done = total, advance, 0

    def __call__(self, event: observe.Event) -> None:
        if event.name == "replay.payload" and self._advance is not None:
            self._done += 1
            self._advance(self._done, self._total)


def _groups(specs: Sequence[TensorSpec], file_bytes: int) -> list[list[TensorSpec]]:
    """Tensors in order, cut where a file would exceed ``file_bytes``; a larger tensor has its own file."""
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        if groups[-1] and filled + spec.num_bytes > file_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += spec.num_bytes
    return groups


def _file_names(num_files: int) -> list[str]:
    if num_files == 1:
        return [SINGLE]
    return [f"model-{number:05d}-of-{num_files:05d}.safetensors" for number in range(1, num_files + 1)]


def _write(path: Path, specs: Sequence[TensorSpec], tensors: Tensors) -> None:
    """Head and bits in file order, flushed to disk."""
    with path.open("wb", buffering=0) as file:
        _write_all(file.fileno(), _head(specs))
        for spec in specs:
            _write_all(file.fileno(), tensors.pop(spec.name).data.cast("B"))
        os.fsync(file.fileno())


def _head(specs: Sequence[TensorSpec]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        start, end = end, end + spec.num_bytes
        entries[spec.name] = {
            "dtype": _CODES[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _write_index(path: Path, names: Sequence[str], groups: Sequence[Sequence[TensorSpec]]) -> None:
    places = {spec.name: name for name, group in zip(names, groups, strict=True) for spec in group}
    size = sum(spec.num_bytes for group in groups for spec in group)
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": places}, indent=2)
    with path.open("w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while len(left):  # one call writes 2 GiB at most
        left = left[os.write(descriptor, left) :]
