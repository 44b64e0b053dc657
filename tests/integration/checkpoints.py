"""A small local checkpoint with a real tokenizer: what ``model=<path>`` takes, without a download."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

END = "<|end|>"
_CHAT = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def write_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE with an end token and a chat template."""
    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bare.train_from_iterator(["user: What is 3 + 4? Answer with the number only."] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bare, eos_token=END, chat_template=_CHAT)  # type: ignore[no-untyped-call]
    tokenizer.save_pretrained(folder)
    return tokenizer


def write_checkpoint(folder: Path) -> None:
    """Random Qwen2, tied and with biases in attention, which the tiny model has not; and its tokenizer."""
    tokenizer = write_tokenizer(folder)
    config = Qwen2Config(
        vocab_size=len(tokenizer) + 3,
        hidden_size=48,
        intermediate_size=100,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=3,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]  # transformers wraps torch's to
