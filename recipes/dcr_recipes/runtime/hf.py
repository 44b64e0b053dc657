"""The ``hf`` runtime behind a serving process: generation and storage of one transformers model."""

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from dcr.receiver.ports import NativeLoader
from dcr_adapters.hf.generate import generate_group
from dcr_adapters.hf.prompt_cache import PromptCache
from dcr_recipes.runtime.answers import bits
from dcr_recipes.runtime.dump import sampled, write_dump
from dcr_recipes.runtime.files import dense_tensors
from dcr_recipes.runtime.ports import CacheCounts, Group, Probed

if TYPE_CHECKING:
    from torch import nn


class HfEngine:
    """Implements ``Engine``. ``threads`` decides tokens too: kernels sum in another order with others."""

    def __init__(self, model: "nn.Module", prompts: PromptCache | None = None, *, threads: int = 1) -> None:
        self._model = model
        self._prompts = prompts or PromptCache(0)
        self._threads = threads

    def generate(
        self, prompt: list[int], seeds: list[int], *, max_new_tokens: int, temperature: float
    ) -> Group:
        """See ``Engine.generate``."""
        return self._group(prompt, seeds, max_new_tokens, temperature, self._prompts)

    def probe(self, prompt: list[int], max_new_tokens: int, *, fresh: bool) -> Probed:
        """See ``Engine.probe``. A hit gives the same bits as a miss, so one comparison tells."""
        hits = self._prompts.figures().hits
        served = self._group(prompt, [0], max_new_tokens, 1.0, self._prompts)
        hit = self._prompts.figures().hits > hits
        is_stale = fresh and _differ(served, self._group(prompt, [0], max_new_tokens, 1.0, None))
        return Probed(served.tokens[0], served.logprobs[0], hit, is_stale)

    def clear(self) -> None:
        """See ``Engine.clear``."""
        self._prompts.clear()

    def cache(self) -> CacheCounts:
        """See ``Engine.cache``."""
        held = self._prompts.figures()
        return CacheCounts(held.hits, held.misses, held.clears, held.num_bytes)

    def _group(
        self,
        prompt: list[int],
        seeds: list[int],
        max_new_tokens: int,
        temperature: float,
        prompts: PromptCache | None,
    ) -> Group:
        torch.set_num_threads(self._threads)  # per calling thread, and threads of the server come and go
        made = generate_group(
            self._model,
            torch.tensor(prompt, dtype=torch.int64),
            max_new_tokens=max_new_tokens,
            seeds=seeds,
            temperature=temperature,
            prompts=prompts,
        )
        return Group(made.tokens.tolist(), made.logprobs.tolist())


def _differ(one: Group, other: Group) -> bool:
    """Whether a token or a bit of a log probability is another one."""
    return one.tokens != other.tokens or list(map(bits, one.logprobs)) != list(map(bits, other.logprobs))


class LoaderStorage:
    """Implements ``Storage`` over a native loader in this process."""

    def __init__(self, loader: NativeLoader) -> None:
        self._loader = loader

    def dump(self, path: Path, share: float, sample: str) -> int:
        """See ``Storage.dump``."""
        return write_dump(path, sampled(self._loader.resident(), share, sample))

    def load(self, path: Path) -> None:
        """See ``Storage.load``."""
        with torch.no_grad():
            self._loader.load(dense_tensors(path))
        self._loader.synchronize()
