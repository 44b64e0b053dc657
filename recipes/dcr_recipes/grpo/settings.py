"""What one GRPO run is told, below the configuration files."""

from dataclasses import dataclass

from dcr.errors import ConfigError
from dcr_recipes.config import RunConfig


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of the tiny random Llama. The vocabulary is odd on purpose: FSDP2 shards of two ranks are uneven.

    Heads of 32 and multiples of 16 are the least that the CPU kernels of inference engines take.
    """

    vocabulary: int = 515
    hidden: int = 64
    intermediate: int = 160
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    tied: bool = True


@dataclass(frozen=True, slots=True)
class GrpoSettings:
    """Batch shape, optimizer and clipping of a run; ``clip_low``/``clip_high`` are distances from ratio 1.

    A step's batch is ``num_prompts`` groups of ``group_size`` responses of ``response_tokens`` tokens.
    """

    seed: int = 0
    lr: float = 1e-4
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    num_prompts: int = 2
    group_size: int = 8
    prompt_tokens: int = 8
    response_tokens: int = 16
    temperature: float = 1.0
    bf16_compute: bool = True

    def groups_per_rank(self, world_size: int) -> int:
        """Prompt groups that each trainer rank trains on.

        Raises:
            ConfigError: the groups cannot be shared evenly, which FSDP2's lockstep needs.
        """
        if self.num_prompts % world_size:
            raise ConfigError(
                f"recipe.prompts = {self.num_prompts} is not a multiple of trainer.ranks = {world_size}"
            )
        return self.num_prompts // world_size


def settings_of(config: RunConfig) -> GrpoSettings:
    """The part of a run's configuration that decides what is trained."""
    recipe = config.recipe
    return GrpoSettings(
        seed=config.seed,
        lr=config.lr,
        weight_decay=recipe.weight_decay,
        clip_low=recipe.clip_low,
        clip_high=recipe.clip_high,
        num_prompts=recipe.prompts,
        group_size=recipe.group_size,
        prompt_tokens=recipe.prompt_tokens,
        response_tokens=recipe.response_tokens,
        temperature=recipe.temperature,
    )
