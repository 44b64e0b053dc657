"""Native loader of one vLLM rank (DESIGN R9, R20): the model's own ``load_weights`` and its parameters.

Nothing here knows a model: names, shards and packed layouts are what ``load_weights`` makes of them.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import nn

from dcr.receiver.modules import resident_of
from dcr_adapters.vllm import keep_unpacked, refusals


class VllmLoader:
    """Implements ``dcr.receiver.ports.NativeLoader`` over the model of one worker.

    ``config`` is the engine's ``VllmConfig``.
    """

    def __init__(self, model: nn.Module, config: Any = None) -> None:
        self.model = model
        self._config = config
        named = model.named_parameters(remove_duplicate=False)
        first: dict[int, str] = {}
        self._tied = {name for name, value in named if first.setdefault(id(value), name) != name}

    def load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Stream canonical tensors through the model's loader; it raises ValueError for unknown names."""
        with torch.no_grad(), self._as_current():
            self.model.load_weights(weights)  # type: ignore[operator]  # vLLM's protocol

    def resident(self) -> dict[str, torch.Tensor]:
        """Every parameter and buffer of this rank, by vLLM's names."""
        return resident_of(self.model)

    def skips(self, name: str) -> bool:
        """A tied parameter's further name, one of another pipeline stage, or one that vLLM drops."""
        runtime_name = self._runtime_name(name)
        return runtime_name is None or runtime_name in self._tied or runtime_name.startswith(self._elsewhere)

    def refusals(self) -> dict[str, str]:
        """Quantized, laid out anew, packed or shared weights; see ``dcr_adapters.vllm.refusals``."""
        return refusals.refusals(self.model, self._config)

    def synchronize(self) -> None:
        """Derive again what vLLM derives after a load, renew packed copies, wait for the device."""
        with torch.no_grad(), self._as_current():
            self._derive_again()
            keep_unpacked.repack(self.model)
        if any(tensor.device.type != "cpu" for tensor in self.resident().values()):
            torch.accelerator.synchronize()

    def _derive_again(self) -> None:
        """VLLM's own post-load step of attention layers: absorbed projections are copied in place."""
        from vllm.model_executor.layers.attention import is_deferred_attention_layer

        dtype = torch.get_default_dtype() if self._config is None else self._config.model_config.dtype
        for module in self.model.modules():
            if is_deferred_attention_layer(module):
                module.process_weights_after_loading(dtype)  # type: ignore[operator]  # by the test above

    def _as_current(self) -> AbstractContextManager[None]:
        if self._config is None:
            return nullcontext()
        from vllm.config import set_current_vllm_config

        current: AbstractContextManager[None] = set_current_vllm_config(self._config)
        return current

    def _runtime_name(self, name: str) -> str | None:
        for mapper in self._mappers:
            mapped = mapper.map_name(name)
            if mapped is None:
                return None
            name = mapped
        return name

    @cached_property
    def _mappers(self) -> tuple[Any, ...]:
        from vllm.model_executor.models.utils import AutoWeightsLoader

        own = getattr(self.model, "hf_to_vllm_mapper", None)
        dropped = AutoWeightsLoader.REMOVE_UNUSED_ROTARY_EMBEDS_MAPPER
        return (dropped,) if own is None else (dropped, own)

    @cached_property
    def _elsewhere(self) -> tuple[str, ...]:
        """Prefixes of what other pipeline stages hold."""
        from vllm.model_executor.models.utils import get_pp_missing_layer_names

        return tuple(get_pp_missing_layer_names(self.model))
