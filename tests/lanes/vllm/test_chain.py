"""The chain on vLLM's own loaders: ranks in processes of their own catch up; exports are loaded (B5)."""

import shutil
from pathlib import Path

import pytest
import vllm  # noqa: F401 -- imported once, before ranks are forked
from tests.lanes.shared import checkpoints
from tests.lanes.shared.run import Run
from tests.lanes.vllm.world import Layout, world

from dcr import observe
from dcr.model import Encoding
from dcr.receiver.workers.ranks import Workers, remote_ranks
from dcr.refit.export import export_version
from dcr.testing.toy_runtime import RecordingGate

CYCLE = (Encoding.DELTA16, Encoding.XOR, Encoding.OVERWRITE)


def chained(folder: Path, family: str, num_versions: int) -> tuple[Run, list[Path]]:
    """A checkpoint, versions of it that nobody has taken, and each as stock loading wants it."""
    paths = [checkpoints.make(folder, family)]
    run = Run(folder, checkpoints.catalogue(paths[0]), checkpoints.version(paths[0]))
    for number in range(1, num_versions):
        paths.append(checkpoints.changed(paths[-1], folder / f"v{number}", seed=number))
        run.commit_unseen(checkpoints.version(paths[-1]), CYCLE[number % len(CYCLE)])
    return run, paths


@pytest.mark.parametrize(("family", "layout"), [("qwen2", Layout(1)), ("qwen3moe", Layout(2))])
def test_an_engine_that_loaded_the_first_checkpoint_takes_one_delta(
    tmp_path: Path, family: str, layout: Layout
) -> None:
    run, paths = chained(tmp_path, family, 5)
    seen = []

    def listen(event: observe.Event) -> None:
        if event.name == "receiver.catch_up":
            seen.append((event.fields["since"], event.fields["version"]))

    with world(paths[0], layout) as ranks:
        receiver = run.receiver("late", Workers(ranks, folder=tmp_path), RecordingGate())
        with observe.listening(listen):
            run.admit(receiver)
            new = checkpoints.version(checkpoints.changed(paths[-1], tmp_path / "next", seed=99))
            run.refit(receiver, new, receiver.report().classification)  # and it goes on as any other
        assert seen == [(0, 4)]
        stock = remote_ranks(Workers(ranks, folder=tmp_path), run.setup())
        found = [rank.digests() for rank in stock]
        for rank in stock:
            rank.load_dense(tmp_path / "next" / "model.safetensors")
        assert found == [rank.digests() for rank in stock]
    assert not list(run.store_path.glob("*/payload/0-*/[1-9]*/0")), "the composed delta is left in the store"


def test_an_export_is_loaded_like_the_trainers_checkpoint(tmp_path: Path) -> None:
    run, paths = chained(tmp_path, "llama", 3)
    out = tmp_path / "out"
    export_version(run.site.archive, run.records[-1], run.catalogue, out=out, file_bytes=1 << 18)
    for file in paths[0].iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, out)
    assert len(list(out.glob("*.safetensors"))) > 1
    digests = []
    for path in (out, paths[-1]):
        with world(path, Layout(1)) as ranks:
            workers = remote_ranks(Workers(ranks, folder=tmp_path), run.setup())
            digests.append([rank.digests() for rank in workers])
    assert digests[0] == digests[1]
