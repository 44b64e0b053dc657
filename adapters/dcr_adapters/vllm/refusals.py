"""What vLLM does to weights after loading that deltas cannot follow (DESIGN R11, issue "refused in advance").

Found by looking at how the loaded modules are configured, not by names of models or layers; what the
engine's configuration alone tells is in ``settings``. Whatever is overlooked here is left to the base-value
gate, which reads every tensor back.
"""

from functools import cache
from typing import Any

from torch import nn

from dcr.receiver.modules import modules_of
from dcr_adapters.vllm import keep_unpacked, settings

_DENSE = "use dense refits for this engine"
_AMX = "is_amx_bmm_enabled"
_AITER = ("is_aiter_triton_fp4_bmm_enabled", "is_aiter_triton_fp8_bmm_enabled")
_IN_PLACE = frozenset({"TRITON", "BATCHED_TRITON", "CPU"})
"""Expert backends, by the names of vLLM's enumeration, that compute from parameters as they were loaded."""


def refusals(model: nn.Module, config: Any = None) -> dict[str, str]:
    """Resident name, layer or setting -> reason and remedy, empty if all stays as loaded.

    ``config`` is the engine's.
    """
    found = settings.refused(config)
    for prefix, module in modules_of(model):
        own = [(name, parameter) for name, parameter in module._parameters.items() if parameter is not None]
        reason = _of_module(module) if own else ""
        for name, parameter in own:
            if parameter.is_meta:
                found[prefix + name] = "a layerwise reload is in progress; wait until vLLM has finished it"
            elif reason:
                found[prefix + name] = reason
        if absorbed := _absorbed(module):
            found[prefix.rstrip(".")] = absorbed
    if hasattr(model, "process_weights_after_loading"):
        found[type(model).__name__] = (
            f"the model derives weights after loading, and not layer by layer; {_DENSE}"
        )
    return found


def _of_module(module: nn.Module) -> str:
    method: object = getattr(module, "quant_method", None)
    quantized = _quantized(type(method))  # type: ignore[arg-type]  # mypy holds that a class has no hash
    checks = (quantized, _experts(module, method), _packed(module))
    return next((reason for reason in checks if reason), "")


@cache
def _quantized(method: type) -> str:
    """Of the class of a layer's method."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    plain = any(kind.__name__.startswith("Unquantized") for kind in method.__mro__)
    if plain or not issubclass(method, QuantizeMethodBase):
        return ""
    return (
        f"{method.__name__} stores other bits than the checkpoint; serve the model unquantized, or {_DENSE}"
    )


def _experts(module: nn.Module, method: Any) -> str:
    backend = getattr(method, "unquantized_backend", None)
    if backend is None:
        return ""
    if backend.name not in _IN_PLACE:
        return (
            f"the {backend.value} backend lays experts out anew after loading; "
            "start vLLM with moe_backend=triton"
        )
    zen = getattr(getattr(getattr(method, "moe_kernel", None), "fused_experts", None), "_use_zentorch", False)
    if backend.name == "CPU" and not keep_unpacked.is_kept(module) and not zen:
        return _not_kept("experts are packed in place")
    return ""


def _packed(module: nn.Module) -> str:
    linear = getattr(module, "cpu_linear", None)
    if linear is not None and linear is not nn.functional.linear:
        return _not_kept("the layer computes from a packed handle")
    if hasattr(module, "_cpu_unpacked_conv_weight"):
        return _not_kept("the convolution is packed in place")
    return ""


def _not_kept(what: str) -> str:
    return (
        f"{what}: name DCR in the engine's configuration (worker_extension_cls or weight_transfer_config), "
        f"or set {keep_unpacked.SWITCH}=1, so that weights are kept as loaded"
    )


def _absorbed(module: nn.Module) -> str:
    own = module.__dict__  # where flags are: torch's __getattr__ is slow to say that there is none
    if own.get(_AMX):
        return f"attention keeps only a packed form of this projection (AMX); {_DENSE}"
    if any(own.get(flag) for flag in _AITER):
        return f"attention keeps a quantized product of this projection; {_DENSE}"
    return ""
