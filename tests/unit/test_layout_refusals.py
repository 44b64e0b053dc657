"""Layouts that cannot be exact are refused when a source is made: parameter, layout and reason (R4, R11).

Mapping objects are stand-ins: nothing of Megatron is needed to see what is refused.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from typing_extensions import override

from dcr.errors import UnsupportedPath
from dcr.model import TensorSpec
from dcr_adapters.fsdp import FsdpShards
from dcr_adapters.megatron import closed_form, row_blocks, shards
from dcr_adapters.megatron.mapped import Source, kind_of

CONFIG = SimpleNamespace(
    kv_channels=2, hidden_size=8, num_attention_heads=4, num_query_groups=2, mamba_num_heads=4,
    mamba_head_dim=2, mamba_state_dim=2, mamba_num_groups=2, linear_num_value_heads=4,
    linear_num_key_heads=2, linear_value_head_dim=2, linear_key_head_dim=2,
)  # fmt: skip


def source(shape: tuple[int, ...], *, size: int = 2, **mapping: Any) -> Source:
    """A parameter ``m.weight`` of a local ``shape`` on rank 0 of ``size``."""
    names = {"q": "q", "k": "k", "v": "v", "gate": "gate", "up": "up", "qkvz": "a", "ba": "b"}
    fields = {"megatron_param": "m.weight", "hf_param": names, "_get_config": lambda _: CONFIG}
    return Source(SimpleNamespace(**(fields | mapping)), None, shape, size, 0)


def chunks_in_another_order(config: object, local_tp: bool) -> list[np.ndarray[Any, Any]]:
    return [np.arange(2, 4), np.arange(2)]


@pytest.mark.parametrize(
    ("handler", "given", "reason"),
    [
        (
            closed_form._row,
            source((2, 3, 4)),
            r"of shape \(2, 3, 4\): a row-parallel weight of more than two",
        ),
        (
            closed_form._fused_gated,
            source((4,)),
            r"of shape \(4,\): the Bridge fuses gate and up of matrices",
        ),
        (closed_form._gated, source((3, 2)), "3 rows are no gate and up halves"),
        (closed_form._qkv, source((7, 2)), "14 rows are no multiple of the 8 of a query group"),
        (
            row_blocks.mamba_in_proj,
            source((5, 2)),
            "has 5 rows, its configuration asks for 14 on each of 2",
        ),
        (row_blocks.gdn, source((5, 2)), "has 5 rows, its configuration asks for 16 on each of 2 ranks"),
        (
            row_blocks.chunked,
            source((4, 2), get_shard_idx=chunks_in_another_order),
            "its chunks do not follow another",
        ),
    ],
)
def test_shapes_that_a_mapping_class_cannot_have(
    handler: Callable[[Source], object], given: Source, reason: str
) -> None:
    with pytest.raises(UnsupportedPath, match=f"parameter 'm.weight'.*{reason}"):
        handler(given)


def test_a_layer_whose_split_is_not_known() -> None:
    def unknown(module: object) -> str:
        raise ValueError("cannot tell how Odd is split\nand more")

    with pytest.raises(UnsupportedPath, match=r"parameter 'm.weight': cannot tell how Odd is split$"):
        kind_of(source((2,), _detect_parallelism_type=unknown).mapping, None)


@pytest.mark.parametrize("counts", [[{"w": 2}, {}], [{"w": 4}, {"w": 4}]])
def test_shards_that_are_not_the_whole_tensor_once(counts: list[dict[str, int]]) -> None:
    """One is missing, or a parameter is replicated where its mapping says it is split."""
    with pytest.raises(UnsupportedPath, match=r"shards of 'w' hold [28] of its 4 elements \(2, 2\)"):
        shards._require_complete((TensorSpec("w", (2, 2), "bfloat16"),), counts)


def test_ranks_that_disagree_about_a_tensor() -> None:
    one, other = TensorSpec("w", (2,), "bfloat16"), TensorSpec("w", (3,), "bfloat16")
    with pytest.raises(UnsupportedPath, match="ranks disagree about 'w'"):
        shards._merge([[one], [other]])


class WithExtraState(torch.nn.Linear):
    @override
    def get_extra_state(self) -> Any:
        return torch.zeros(1)

    @override
    def set_extra_state(self, state: Any) -> None:
        pass


def test_state_that_is_no_parameter() -> None:
    with pytest.raises(UnsupportedPath, match=r"state_dict entry '0\._extra_state' is no parameter"):
        FsdpShards(torch.nn.Sequential(WithExtraState(2, 2)))


def test_stored_numbers_without_defined_bits() -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer("spin", torch.zeros(1, dtype=torch.complex64))
    with pytest.raises(UnsupportedPath, match="tensor 'spin' has dtype complex64, which cannot be refitted"):
        FsdpShards(model)
