"""A run's model in the forms that its processes need: FP32 masters, the served shape, the tokenizer."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from dcr.errors import ConfigError
from dcr_recipes.config import RunConfig
from dcr_recipes.grpo.policy import build_tiny, tiny_config
from dcr_recipes.grpo.settings import ModelSizes, settings_of
from dcr_recipes.grpo.tasks import chain_sum, random_tokens
from dcr_recipes.grpo.training import Start
from dcr_recipes.models.catalogue import folder_of

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


def masters(model: str, seed: int) -> "nn.Module":
    """The whole policy with FP32 weights, equal on every process; ``seed`` decides the tiny model's.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or lacks weights.
    """
    folder = folder_of(model)
    return build_tiny(ModelSizes(), seed) if folder is None else _load(folder)


def served_config(model: str) -> "PretrainedConfig | Path":
    """What a serving instance is built from; its weights come with the first refit."""
    folder = folder_of(model)
    return tiny_config(ModelSizes()) if folder is None else folder


def import_model(model: str) -> None:
    """Import the classes that building ``model`` needs; one that cannot be built is no error here."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    config = served_config(model)
    with contextlib.suppress(OSError, ValueError, KeyError):
        if isinstance(config, Path):
            config = AutoConfig.from_pretrained(config, local_files_only=True)
        MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]


def vocabulary(model: "nn.Module") -> int:
    """Token ids that ``model`` knows."""
    return int(cast("PretrainedConfig", model.config).get_text_config().vocab_size)


def tokenizer(model: str) -> "PreTrainedTokenizerBase":
    """The tokenizer that lies beside the weights.

    Raises:
        ConfigError: there is none.
    """
    from transformers import AutoTokenizer

    folder = folder_of(model)
    try:
        if folder is None:
            raise ValueError("the tiny model speaks no language")
        found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"recipe.task: model={model} has no tokenizer for prompts in words; use"
            f" recipe.task=random_tokens ({' '.join(str(err).split())})"
        ) from err
    return found


def _load(folder: Path) -> "nn.Module":
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]  # its carriage returns would fill the process's log
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except (OSError, ValueError) as err:
        raise ConfigError(f"model: {folder} cannot be loaded: {' '.join(str(err).split())}") from err
    policy: nn.Module = loaded[0]
    if missing := sorted(loaded[1]["missing_keys"]):
        raise ConfigError(
            f"model: {folder} lacks {len(missing)} weights of its configuration, {missing[0]} among them"
        )
    return policy


def start_of(config: RunConfig) -> Start:
    """The training that ``config`` describes, before its first step.

    Raises:
        ConfigError: the model cannot be loaded, or the task needs a tokenizer that it lacks.
    """
    settings = settings_of(config)
    model = masters(config.model, config.seed)
    if config.recipe.task == "random_tokens":
        return Start(model, random_tokens(settings, vocabulary(model)), settings)
    return Start(model, chain_sum(settings, tokenizer(config.model)), settings)
