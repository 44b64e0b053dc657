"""Keeps weights loadable on vLLM's CPU backend, which packs or drops them after the first load (DESIGN B7).

What vLLM 0.32 does there, and what happens instead in an engine that takes deltas:

- Linear layers compute from a packed handle and their weight becomes empty; output heads keep theirs but
  compute from a stale handle. Instead: ``torch.nn.functional.linear`` on the live parameter.
- Experts are replaced by a packed tensor of the same shape, so that a later load corrupts them silently.
  Instead: the parameters stay as loaded, beside a packed copy that is made again by ``repack``.
- Short convolutions are packed in place on CPUs with bfloat16 instructions. Instead: a packed copy beside
  the parameter, for the kernels that want one.

No setting of vLLM turns this off. What packs is always vLLM's own step, run on a stand-in of the layer.
"""

import copy
import functools
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dcr.errors import ConfigError, UnsupportedPath

SWITCH = "DCR_VLLM_KEEP_UNPACKED"
"""Environment variable: 1 keeps, 0 does not, unset keeps in engines whose configuration names DCR."""
_PACKED = "dcr_packed"
_REPACK = "dcr_repack"
_MARK = "__dcr_keeps__"


def wanted() -> bool:
    """Whether the engine that is being loaded here keeps its weights unpacked.

    Raises:
        ConfigError: the environment variable is neither 0 nor 1.
    """
    switch = os.environ.get(SWITCH, "")
    if switch not in ("", "0", "1"):
        raise ConfigError(f"{SWITCH}={switch!r} is not a choice; accepted: 0, 1, or unset")
    return switch == "1" if switch else _configured()


def _configured() -> bool:
    from vllm.config import get_current_vllm_config_or_none

    from dcr_adapters.vllm.plugin import BACKEND

    config = get_current_vllm_config_or_none()
    if config is None:
        return False
    transfer = config.weight_transfer_config
    return _answers_calls(config.parallel_config.worker_extension_cls) or (
        transfer is not None and transfer.backend == BACKEND
    )


def _answers_calls(extension: str) -> bool:
    """Whether the named worker extension is DCR's or a class derived from it."""
    if not extension:
        return False
    from vllm.utils.import_utils import resolve_obj_by_qualname

    return hasattr(resolve_obj_by_qualname(extension), "dcr_call")


def install() -> None:
    """Put the steps above in place of vLLM's, on the CPU platform only. Idempotent.

    Must run before the model is loaded. Each step asks ``wanted`` when a layer is processed.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention

    _wrap(utils, "dispatch_cpu_unquantized_gemm", _keep_gemm)
    _wrap(CPUUnquantizedExperts, "process_weights_after_loading", _keep_experts)
    _wrap(CPUUnquantizedExperts, "apply", _apply_experts)
    _wrap(gdn_attention, "_causal_conv1d_fwd_cpu", _packed_conv)
    _wrap(gdn_attention, "_causal_conv1d_update_cpu", _packed_conv)


def repack(model: nn.Module) -> int:
    """Make every packed copy anew from the live parameters; returns how many layers have one."""
    steps = [getattr(module, _REPACK) for module in model.modules() if hasattr(module, _REPACK)]
    with torch.no_grad():
        for step in steps:
            step()
    return len(steps)


def is_kept(module: nn.Module) -> bool:
    """Whether ``module`` has a packed copy beside its live parameters."""
    return hasattr(module, _REPACK)


def _wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    stock = getattr(owner, name)
    if hasattr(stock, _MARK):
        return

    @functools.wraps(stock)
    def kept(*args: Any, **named: Any) -> Any:
        return wrapper(stock, *args, **named)

    setattr(kept, _MARK, True)
    setattr(owner, name, kept)


def _stand_in(layer: nn.Module) -> nn.Module:
    """A twin of ``layer`` whose parameters are other objects over the same storage."""
    twin = copy.copy(layer)
    twin._parameters = {
        name: None if value is None else nn.Parameter(value.data, requires_grad=False)
        for name, value in layer._parameters.items()
    }
    return twin


def _keep_gemm(stock: Callable[..., None], layer: Any, remove_weight: bool) -> None:
    if not wanted():
        stock(layer, remove_weight)
    elif layer.weight.is_meta or layer.weight.ndim == 2:
        layer.cpu_linear = nn.functional.linear
    else:
        _keep_conv(stock, layer)


def _keep_conv(stock: Callable[..., None], layer: Any) -> None:
    def pack() -> torch.Tensor:
        twin: Any = _stand_in(layer)
        stock(twin, False)
        packed: torch.Tensor = twin.weight.data
        return packed

    def again() -> None:
        setattr(layer.weight, _PACKED, pack())

    if pack().data_ptr() != layer.weight.data_ptr():
        again()
        setattr(layer, _REPACK, again)


def _packed_conv(stock: Callable[..., Any], *, weight: Any, is_weight_packed: bool, **rest: Any) -> Any:
    chosen = getattr(weight, _PACKED, weight) if is_weight_packed else weight
    return stock(weight=chosen, is_weight_packed=is_weight_packed, **rest)


def _keep_experts(stock: Callable[..., None], experts: Any, layer: Any) -> None:
    if not wanted():
        stock(experts, layer)
        return

    def again() -> None:
        twin: Any = _stand_in(layer)
        stock(experts, twin)
        for name, value in twin._parameters.items():
            own = layer._parameters[name]
            if "bias" in name and value is not None and value.shape != own.shape:
                raise UnsupportedPath(
                    f"{name}: the packed experts need a padded bias, which kept parameters do not have; "
                    "choose a tensor parallel size that leaves a multiple of 32 rows"
                )
        setattr(experts, _PACKED, (twin.w13_weight, twin.w2_weight))

    again()
    setattr(layer, _REPACK, again)


def _apply_experts(
    stock: Callable[..., Any],
    experts: Any,
    output: Any,
    hidden_states: Any,
    w1: Any,
    w2: Any,
    *rest: Any,
    **named: Any,
) -> Any:
    w1, w2 = getattr(experts, _PACKED, (w1, w2))
    return stock(experts, output, hidden_states, w1, w2, *rest, **named)
