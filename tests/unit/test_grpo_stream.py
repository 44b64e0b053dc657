"""Files of our own writer, read by the reference implementation."""

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from dcr_recipes.grpo.stream import write_safetensors

TENSORS = {
    "b": torch.arange(12, dtype=torch.float32).reshape(3, 4).T,
    "a/x": torch.tensor(7.5),
    "none": torch.zeros(0, 3),
    "bits": torch.tensor([float("nan"), -0.0, 1e-40]).bfloat16(),
    "flag": torch.tensor([True, False]),
    "half": torch.ones(3, dtype=torch.float16),
    "wide": torch.ones(1, dtype=torch.float64),
    **{
        f"int{t.itemsize}": torch.arange(5, dtype=t)
        for t in (torch.int8, torch.int16, torch.int32, torch.int64)
    },
    "raw": torch.arange(5, dtype=torch.uint8),
}


def test_the_reference_reads_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_safetensors(path, TENSORS, {"dcr": '{"a": "\u00e9"}'})
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"dcr": '{"a": "\u00e9"}'}
    loaded = load_file(path)
    assert loaded.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert (loaded[name].dtype, loaded[name].shape) == (tensor.dtype, tensor.shape)
        raw, expected = (t.contiguous().reshape(-1).view(torch.uint8) for t in (loaded[name], tensor))
        assert torch.equal(raw, expected)


def test_short_writes_are_continued_and_errors_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts, write = tmp_path / "whole", tmp_path / "parts", os.write
    write_safetensors(whole, TENSORS, {})
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, memoryview(data)[:5]))
    write_safetensors(parts, TENSORS, {})
    assert parts.read_bytes() == whole.read_bytes()

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        write_safetensors(parts, TENSORS, {})


def test_a_full_disk_says_which_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match=r"No space left on device: .*x\.safetensors") as caught:
        write_safetensors(tmp_path / "x.safetensors", TENSORS, {})
    assert caught.value.errno == errno.ENOSPC
