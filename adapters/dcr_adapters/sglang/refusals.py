"""What SGLang does to weights after loading that deltas cannot follow (DESIGN R11).

Found by looking at how the loaded modules and the engine are configured, not by names of models or layers.
Whatever is overlooked here is left to the base-value gate, which reads every tensor back.
"""

from dataclasses import dataclass
from typing import Any

from torch import nn

from dcr.receiver.modules import modules_of

_DENSE = "use dense refits for this engine"
_VIEWS = "SGLANG_MOE_COPY_WEIGHT_VIEWS_BEFORE_H2D"


@dataclass(frozen=True, slots=True)
class Engine:
    """How one rank's engine is set up. ``shuffles``: ROCm kernels lay experts out anew after loading.

    ``weight_cache``: mode of the cache that shares weights between engines. ``copies_views``: slices of
    experts are cloned before they are copied. ``offload_gb``: of weights that live on the host.
    """

    weight_cache: str = "off"
    copies_views: bool = False
    shuffles: bool = False
    moves_experts: bool = False
    offload_gb: float = 0.0
    stages: int = 1


def this_engine() -> Engine:
    """Of the worker process that this runs in; SGLang has published its settings there."""
    from sglang.srt.environ import envs
    from sglang.srt.layers.quantization import unquant
    from sglang.srt.runtime_context import get_exec, get_model, get_parallel

    return Engine(
        weight_cache=get_model().weight_cache_mode,
        copies_views=bool(envs.SGLANG_MOE_COPY_WEIGHT_VIEWS_BEFORE_H2D.get()),
        shuffles=bool(unquant._use_aiter),
        moves_experts=bool(get_exec().moe.enable_eplb),
        offload_gb=float(get_exec().offload.cpu_offload_gb),
        stages=int(get_parallel().pp_size),
    )


def refusals(model: nn.Module, engine: Engine) -> dict[str, str]:
    """Resident name or setting -> reason and remedy, empty if every weight stays as its loader left it."""
    found = _of_engine(engine)
    for prefix, module in modules_of(model):
        own = [(name, parameter) for name, parameter in module._parameters.items() if parameter is not None]
        reason = _of_module(module, engine) if own else ""
        for name, parameter in own:
            if parameter.is_meta:
                found[prefix + name] = (
                    "it is on the meta device: a load layer by layer is under way; wait for it"
                )
            elif reason:
                found[prefix + name] = reason
    if hasattr(model, "post_load_weights"):
        found[type(model).__name__] = f"the model derives weights after loading (post_load_weights); {_DENSE}"
    if kept := _kept_splits(model):
        found[f"{type(model).__name__}: derived weights"] = f"{kept} {_DENSE}"
    return found


def _of_engine(engine: Engine) -> dict[str, str]:
    found = {}
    if engine.weight_cache != "off":
        found["weight_cache_mode"] = (
            f"weights are shared with other engines ({engine.weight_cache}); "
            "start SGLang with --weight-cache-mode off"
        )
    if engine.copies_views:
        found[_VIEWS] = "slices of experts are cloned, so that a mask would be lost; unset the variable"
    if engine.moves_experts:
        found["enable_eplb"] = (
            "experts are moved between ranks while it serves; start SGLang without --enable-eplb"
        )
    if engine.offload_gb > 0:
        found["cpu_offload_gb"] = "weights move between host and device; start SGLang with --cpu-offload-gb 0"
    if engine.stages > 1:
        found["pp_size"] = f"pipeline stages were not tried with SGLang; {_DENSE}"
    return found


def _of_module(module: nn.Module, engine: Engine) -> str:
    method = getattr(module, "quant_method", None)
    if getattr(module, "use_intel_amx_backend", False):
        return f"the layer computes from weights packed for AMX, which cannot be unpacked; {_DENSE}"
    if method is None or type(method).__name__ == "PackWeightMethod":  # packs for AMX alone: see above
        return ""
    if (
        "Unquantized" not in type(method).__name__
    ):  # of its bases says nothing: methods that quantize have such
        return (
            f"{type(method).__name__} stores other bits than the checkpoint; "
            f"serve the model unquantized, or {_DENSE}"
        )
    return _experts(method, engine)


def _experts(method: Any, engine: Engine) -> str:
    """Of methods that know of experts' kernels; linear layers have none of these attributes."""
    if engine.shuffles and hasattr(method, "use_flashinfer_trtllm_moe"):
        return "ROCm's aiter kernels lay experts out anew after loading; set SGLANG_USE_AITER=0"
    if getattr(method, "use_flashinfer_trtllm_moe", False):
        return (
            "the flashinfer_trtllm backend packs experts after loading; start SGLang with "
            "--moe-runner-backend triton"
        )
    if getattr(method, "w13_swiglu_interleaved", False):
        return "rows of experts are interleaved after loading; set SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED=0"
    return ""


def _kept_splits(model: nn.Module) -> str:
    """SGLang's own reason why this model takes no update at all, or nothing."""
    from sglang.srt.model_executor.model_runner_components import weight_updater

    known = getattr(weight_updater, "_unsupported_derived_weight_cache_error", None)
    return (known(model) or "") if known is not None else ""
