"""``dcr export``: every kept version as a checkpoint, proven, in files of bounded size."""

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.unit.run_folders import flip, stored_run

from dcr.errors import ConfigError, IntegrityError, StoreError
from dcr.model import Encoding, Manifest, PayloadRef, stored_bits
from dcr.refit.export import INDEX, SINGLE, export_version
from dcr.refit.versions import kept_versions, record_at
from dcr.testing.history import History, random_tensors, small_catalogue
from dcr.transport.archive import StoreArchive
from dcr.transport.directory import DirectoryStore
from dcr_recipes.cli import main

KEPT = 4


@pytest.fixture
def history(tmp_path: Path) -> History:
    (tmp_path / "store").mkdir()
    made = History(DirectoryStore(tmp_path / "store"), small_catalogue(), audits=True)
    rng = np.random.default_rng(5)
    for version in range(KEPT):
        encoding = Encoding.OVERWRITE if version == 2 else Encoding.XOR
        made.commit(random_tensors(made.catalogue, rng), encoding=encoding)
    return made


def same(found: dict[str, torch.Tensor], history: History, version: int) -> bool:
    specs = {spec.name: spec for spec in history.catalogue.tensors}
    return found.keys() == specs.keys() and all(
        tuple(tensor.shape) == specs[name].shape
        and str(tensor.dtype) == f"torch.{specs[name].dtype}"
        and np.array_equal(stored_bits(tensor), history.tensors[version][name])
        for name, tensor in found.items()
    )


@pytest.mark.parametrize("version", range(KEPT))
def test_every_version_comes_back_bit_by_bit(history: History, tmp_path: Path, version: int) -> None:
    record = record_at(history.archive, history.records[-1], history.catalogue, version)
    assert (record.manifest, record.audit) == (
        history.records[version].manifest, history.records[version].audit
    )  # fmt: skip
    told: list[tuple[int, int]] = []
    files = export_version(
        history.archive, record, history.catalogue,
        out=tmp_path / "out", file_bytes=1 << 20, advance=lambda *done: told.append(done),
    )  # fmt: skip
    assert files == [tmp_path / "out" / SINGLE]
    assert same(load_file(files[0]), history, version)
    assert told[-1][0] == told[-1][1] == len(told)


def test_large_models_go_to_several_files_with_an_index(history: History, tmp_path: Path) -> None:
    out = tmp_path / "out"
    files = export_version(history.archive, history.records[-1], history.catalogue, out=out, file_bytes=16)
    assert len(files) == 3
    index = json.loads((out / INDEX).read_text())
    found = {name: load_file(out / file)[name] for name, file in index["weight_map"].items()}
    assert same(found, history, KEPT - 1)
    assert index["metadata"]["total_size"] == history.catalogue.num_bytes
    assert sorted(path.name for path in out.iterdir()) == sorted([INDEX, *(path.name for path in files)])


def test_a_damaged_chain_is_named_and_leaves_nothing(history: History, tmp_path: Path) -> None:
    flip(next((tmp_path / "store").glob("*/payload/2-6/0/1")))
    for version, broken in ((1, False), (2, True), (3, True)):
        record = record_at(history.archive, history.records[-1], history.catalogue, version)
        out = tmp_path / f"out-{version}"
        if not broken:
            export_version(history.archive, record, history.catalogue, out=out, file_bytes=1 << 20)
            continue
        with pytest.raises(IntegrityError, match="version 2: payload 1 of owner 0"):
            export_version(history.archive, record, history.catalogue, out=out, file_bytes=1 << 20)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out-1", "store"]


def test_the_lease_is_kept_between_any_two_payloads(history: History, tmp_path: Path) -> None:
    """Each file is rebuilt under it: a lease for one file alone does not hold what the next one needs."""
    told: list[str] = []

    class Told(StoreArchive):
        @contextmanager
        def reading(  # type: ignore[explicit-override]
            self, version: int
        ) -> Iterator[Callable[[], None]]:
            def kept() -> None:
                told.append("keep")
                keep()

            with super().reading(version) as keep:
                yield kept

        def get_payload(  # type: ignore[explicit-override]
            self, manifest: Manifest, ref: PayloadRef
        ) -> bytes:
            told.append("payload")
            return super().get_payload(manifest, ref)

    archive = Told(history.store, history.catalogue.run)
    out = tmp_path / "out"
    export_version(archive, history.records[-1], history.catalogue, out=out, file_bytes=16)
    payloads = [at for at, what in enumerate(told) if what == "payload"]
    assert len(payloads) == 3 * sum(len(manifest.payloads) for manifest in history.manifests)
    assert all(told[at - 2 : at] == ["keep", "keep"] for at in payloads), "the reader's of all files, too"


def test_what_stands_beside_the_weights_comes_with_them_or_nothing_does(
    history: History, tmp_path: Path
) -> None:
    def full(folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path / "out"
    with pytest.raises(StoreError, match=r"cannot write .*out: No space left on device"):
        export_version(
            history.archive, history.records[-1], history.catalogue,
            out=out, file_bytes=1 << 20, beside=full,
        )  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]


def test_what_is_not_kept_or_not_proven_is_refused(history: History, tmp_path: Path) -> None:
    assert [manifest.attempt.version for manifest in kept_versions(history.archive, history.records[-1])] == [
        0, 1, 2, 3
    ]  # fmt: skip
    for version in (-1, KEPT):
        with pytest.raises(ConfigError, match=f"version {version} is not kept; kept are 0 to 3"):
            record_at(history.archive, history.records[-1], history.catalogue, version)
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match=r"--out: .*out exists"):
        export_version(
            history.archive, history.records[-1], history.catalogue, out=tmp_path / "out", file_bytes=1
        )


def test_the_command_writes_weights_and_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, out = stored_run(tmp_path / "run"), tmp_path / "out"
    assert main(["export", made.root, "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["version"], told["files"]) == (2, [SINGLE])
    assert same(load_file(out / SINGLE), made.history, 2)
    written = json.loads((out / "config.json").read_text())
    assert (written["model_type"], written["dtype"]) == ("llama", "bfloat16")
    assert main(["export", made.root, "--out", str(out)]) == 2
    assert "exists" in capsys.readouterr().err
    assert main(["export", made.root, "--out", str(tmp_path / "other"), "--version", "9"]) == 2
    assert "version 9 is not kept; kept are 0 to 2" in capsys.readouterr().err
    assert main(["export", made.root, "--out", str(tmp_path / "other"), "--file-mib", "0"]) == 2
