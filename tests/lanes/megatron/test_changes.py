"""The complete changed set, by brute force: canonical tensors, cut into shards by the Bridge's own import."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lanes.megatron.mapping_cases import CASES, degrees, direct_pieces, sizes
from tests.lanes.megatron.standins import Case

from dcr.model import stored_bits
from dcr.source.change import find_change
from dcr.source.task import AffineTask
from dcr_adapters.megatron.probe import localize, select

Tensors = dict[str, torch.Tensor]
# permuted weights and zero-centred norms are imported by other code than they are exported with
IMPORTED = [name for name in CASES if not name.startswith("permuted")]


@pytest.fixture(autouse=True, scope="module")
def splits() -> Iterator[list[torch.Tensor]]:
    """What the Bridge would scatter over the tensor-parallel ranks; filled by each import."""
    kept: list[torch.Tensor] = []
    from megatron.bridge.models.conversion import param_mapping

    base: Any = param_mapping.MegatronParamMapping
    own = base.scatter_to_tp_ranks, base.broadcast_tensor_to_tp_ranks

    def scatter(self: Any, parts: list[torch.Tensor], *_: object, **__: object) -> torch.Tensor:
        kept[:] = [part.contiguous() for part in parts]
        return parts[0]

    base.scatter_to_tp_ranks = scatter
    yield kept
    base.scatter_to_tp_ranks, base.broadcast_tensor_to_tp_ranks = own


def shards(case: Case, canonical: Tensors, kept: list[torch.Tensor]) -> list[torch.Tensor]:
    """Each rank's local parameter."""
    names = case.mapping.hf_param
    given_: Any = canonical[names] if isinstance(names, str) else {k: canonical[v] for k, v in names.items()}
    module = case.module()
    parameter = torch.nn.Parameter(torch.zeros(case.local_shape(), dtype=torch.int16), requires_grad=False)
    setattr(module, case.mapping.megatron_param.rpartition(".")[2], parameter)
    if case.kind == "replicated":  # whole on every rank; its broadcast asks for a CUDA device
        whole = localize(case.mapping, 1, 0).hf_to_megatron(given_, module)
        return [whole] * case.size
    kept.clear()
    first = localize(case.mapping, case.size, 0).hf_to_megatron(given_, module)
    return list(kept) if kept else [first]


def shapes(case: Case) -> dict[str, tuple[int, ...]]:
    found: Any = select(localize(case.mapping, case.size, 0), case.module(), case.local_shape())
    return {each.name: each.shape for each in found}


@pytest.mark.parametrize("name", IMPORTED)
@settings(max_examples=15)
@given(degrees, sizes, sizes, st.data())
def test_every_changed_bit_is_found_once(
    splits: list[torch.Tensor], name: str, t: int, a: int, b: int, data: st.DataObject
) -> None:
    case = CASES[name](t, a, b)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old: Tensors = {}
    new: Tensors = {}
    for tensor, shape in shapes(case).items():
        bits = rng.integers(-(2**15), 2**15, shape, dtype=np.int16)
        flips = rng.integers(0, 2**15, shape, dtype=np.int16) * (rng.random(shape) < 0.3)
        old[tensor], new[tensor] = torch.from_numpy(bits), torch.from_numpy(bits ^ flips.astype(np.int16))
    before, after = shards(case, old, splits), shards(case, new, splits)
    found: dict[str, list[Any]] = {tensor: [] for tensor in old}
    for rank in range(t):
        for piece in direct_pieces(case, rank):
            if not piece.split and rank:
                continue
            task = AffineTask("k", piece.name, "bfloat16", piece.map.src_size, piece.map, (rank,))
            bits_old, bits_new = (stored_bits(piece.take(each[rank])) for each in (before, after))
            change: Any = find_change(task, bits_new, bits_old)
            found[piece.name].append(change.locations)
            np.testing.assert_array_equal(change.new, stored_bits(new[piece.name])[change.locations])
    for tensor, locations in found.items():
        want = np.flatnonzero((old[tensor] != new[tensor]).numpy().reshape(-1))
        got = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *locations]))
        np.testing.assert_array_equal(got, want, err_msg=tensor)
