"""Payload bytes stored and fetched, by role, between transitions."""

import json
from pathlib import Path

from dcr import observe
from dcr.transport.directory import DirectoryStore
from dcr_recipes.summary import summarize
from dcr_recipes.traffic import DOWNLOADED, UPLOADED, TrafficCounter, TrafficMeter

STORE = "store"


def moved(folder: Path, process: str, *, ends: str) -> None:
    """A process that stores or fetches one payload of 7 bytes, and something that is none, then tells."""
    with observe.listening(TrafficCounter(folder / f"{process}.json")):
        store = DirectoryStore(folder / STORE)
        store.put("run/payload/1-1/0/0", b"payload")
        store.put("run/manifest/ab", b"manifest")
        store.get("run/payload/1-1/0/0")
        observe.point(ends)


def test_owners_store_and_receivers_fetch(tmp_path: Path) -> None:
    (tmp_path / STORE).mkdir()
    meter = TrafficMeter(tmp_path)
    assert meter.take() == {UPLOADED: 0, DOWNLOADED: 0}
    moved(tmp_path, "owner-0-1", ends="owner.fold_in")
    for name in ("runtime-0-1", "runtime-1-1", "oracle-1"):
        moved(tmp_path, name, ends="receiver.settle.after")
    assert meter.take() == {UPLOADED: 7, DOWNLOADED: 14}
    assert meter.take() == {UPLOADED: 0, DOWNLOADED: 0}
    moved(tmp_path, "runtime-0-2", ends="receiver.settle.after")
    assert meter.take() == {UPLOADED: 0, DOWNLOADED: 7}, "a restarted process counts from nothing"
    assert TrafficMeter(tmp_path).take() == {UPLOADED: 0, DOWNLOADED: 0}


def test_nothing_is_told_before_a_transition_ends(tmp_path: Path) -> None:
    (tmp_path / STORE).mkdir()
    moved(tmp_path, "runtime-0-1", ends="receiver.payload.after")
    assert TrafficMeter(tmp_path).take() == {UPLOADED: 0, DOWNLOADED: 0}
    assert not (tmp_path / "runtime-0-1.json").exists()


def test_what_cannot_be_read_or_written_ends_the_count_only(tmp_path: Path) -> None:
    (tmp_path / STORE).mkdir()
    (tmp_path / "owner-0-1.json").write_text("{")
    (tmp_path / "owner-1-1.json").write_text(json.dumps({UPLOADED: 3}))
    meter = TrafficMeter(tmp_path / "nowhere")
    assert meter.take() == {UPLOADED: 0, DOWNLOADED: 0}
    with observe.listening(TrafficCounter(tmp_path / "nowhere" / "owner-0-1.json")):
        observe.point("owner.fold_in")


def test_a_summary_adds_them_up_where_they_were_counted() -> None:
    row = {
        "refit/payload_bytes": 5,
        "refit/dense_bytes": 9,
        "refit/changed_fraction": 0.5,
        "reward/mean": 1.0,
    }
    counted = {**row, f"refit/{UPLOADED}": 5, f"refit/{DOWNLOADED}": 10}
    told = summarize([counted, counted], final_version=2, weights_digest="w", token_digest="t")
    assert (told[UPLOADED], told[DOWNLOADED]) == (10, 20)
    assert UPLOADED not in summarize([row], final_version=1, weights_digest="w", token_digest="t")
