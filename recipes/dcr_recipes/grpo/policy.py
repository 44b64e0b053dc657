"""The trained policy, sharded with FSDP2 in FP32, and the tiny random one, equal on every process."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from dcr_recipes.grpo.seeds import derived_seed
from dcr_recipes.grpo.settings import GrpoSettings, ModelSizes

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh
    from transformers import LlamaConfig

_MAX_POSITIONS = 512


@dataclass(frozen=True, slots=True)
class Policy:
    """One rank's share of the policy: FSDP2 module, its AdamW, and the mesh that shards both."""

    model: "nn.Module"
    optimizer: torch.optim.Optimizer
    mesh: "DeviceMesh"

    @property
    def rank(self) -> int:
        """Position of this process in the mesh."""
        return int(self.mesh.get_rank())

    @property
    def world_size(self) -> int:
        """Number of trainer ranks."""
        return int(self.mesh.size())


def tiny_config(sizes: ModelSizes) -> "LlamaConfig":
    """A Llama that speaks no language."""
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=sizes.vocabulary,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        max_position_embeddings=_MAX_POSITIONS,
        tie_word_embeddings=sizes.tied,
        bos_token_id=None,
        eos_token_id=None,
        architectures=["LlamaForCausalLM"],
    )


def build_tiny(sizes: ModelSizes, seed: int) -> "nn.Module":
    """Random Llama with FP32 weights; the same bits for the same arguments in every process.

    The weights are not rounded to BF16: masters that start between BF16 values cross rounding
    boundaries from the first step on, as those of a model in training do.
    """
    from transformers import LlamaForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "weights"))
        model: nn.Module = LlamaForCausalLM(tiny_config(sizes))
    return model


def repeated_layers(model: "nn.Module") -> list["nn.Module"]:
    """Members of the outermost module lists that hold parameters: the units that are gathered at a time.

    Found by structure, so any architecture will do; lists within a layer (experts) stay with it.
    """
    from torch import nn

    layers: list[nn.Module] = []
    for child in model.children():
        if isinstance(child, nn.ModuleList):
            layers += [member for member in child if next(member.parameters(), None) is not None]
        else:
            layers += repeated_layers(child)
    return layers


def shard_policy(model: "nn.Module", mesh: "DeviceMesh", settings: GrpoSettings) -> Policy:
    """Shard ``model`` (equal on all ranks) over ``mesh``: FP32 masters, FP32 reduction, AdamW.

    Forward and backward run in BF16 if the settings say so, which keeps the training policy close to
    the served one.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    compute = torch.bfloat16 if settings.bf16_compute else torch.float32
    precision = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for layer in repeated_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=precision)
    fully_shard(model, mesh=mesh, mp_policy=precision)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, foreach=False
    )
    return Policy(model, optimizer, mesh)
