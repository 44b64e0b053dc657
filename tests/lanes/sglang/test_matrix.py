"""The matrix of ``tests.lanes.shared.matrix`` on SGLang's own loaders."""

from collections.abc import Iterator

import pytest
import sglang.srt.managers.scheduler  # noqa: F401 -- imported once, before ranks are forked
from tests.lanes.sglang.world import Layout, world
from tests.lanes.shared import checkpoints
from tests.lanes.shared.matrix import METHODS, Case, LoaderMatrix, make_rank

CASES = [
    *((family, Layout(tp)) for family in ("qwen2", "qwen3", "llama", "qwen3moe") for tp in (1, 2)),
    ("qwen3moe", Layout(2, ep=2)),
]


@pytest.fixture(
    scope="module",
    params=[(case, method) for case in CASES for method in METHODS],
    ids=lambda p: f"{p[0][0]}-{p[0][1].name}-{p[1]}",
)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    (family, layout), method = request.param
    folder = tmp_path_factory.getbasetemp()
    old = checkpoints.make(folder, family)
    new = checkpoints.changed(old, folder / f"{family}-new")
    with world(old, layout, make_rank=make_rank(method)) as ranks:
        yield Case(ranks, old, new, tmp_path_factory.mktemp("case"), method)


class TestSglang(LoaderMatrix):
    """Everything is learned."""
