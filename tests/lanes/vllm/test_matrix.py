"""The matrix of ``tests.lanes.shared.matrix`` on vLLM's own loaders."""

from collections.abc import Iterator, Mapping
from typing import ClassVar

import pytest
import vllm  # noqa: F401 -- imported once, before ranks are forked
from tests.lanes.shared import checkpoints
from tests.lanes.shared.matrix import METHODS, Case, LoaderMatrix, make_rank
from tests.lanes.vllm.world import Layout, world

CASES = [
    *((family, Layout(tp)) for family in checkpoints.FAMILIES for tp in (1, 2)),
    *((family, Layout(1)) for family in checkpoints.FURTHER),
    ("llama", Layout(pp=2)),
    ("qwen2", Layout(pp=2)),
    ("qwen3moe", Layout(2, ep=True)),
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


class TestVllm(LoaderMatrix):
    not_learned: ClassVar[Mapping[str, Mapping[str, str]]] = {"nemotron_h": {"A_log": "computed"}}
