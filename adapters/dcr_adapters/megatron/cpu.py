"""megatron-core trains on the CPU and gloo: what it takes from CUDA is replaced."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from dcr_adapters.megatron.imports import import_bridge


class _CudaIsCpu(TorchFunctionMode):
    """device="cuda" of factories, .cuda() and .to("cuda") mean the CPU."""

    @override
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = tuple("cpu" if _is_cuda(arg) else arg for arg in args)
        return func(*args, **kwargs)


def _is_cuda(arg: object) -> bool:
    return isinstance(arg, str | torch.device) and str(arg).startswith("cuda")


class Stream:
    """Streams and events: everything has already happened."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: Stream() if name == "record_event" else None

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Import Megatron and let this process train with it inside, on the CPU where there is no CUDA.

    Patches torch and megatron-core for the life of the process. ``device="cuda"`` means the CPU in this
    thread only, so everything of Megatron's belongs into it.

    Raises:
        ConfigError: megatron-core or Megatron-Bridge are not installed.
    """
    if torch.cuda.is_available():
        import_bridge()
        yield
        return
    _replace_cuda()
    with _CudaIsCpu():
        import_bridge()
        _patch_megatron()
        yield


def _replace_cuda() -> None:
    """Before Megatron is imported."""
    cuda: Any = torch.cuda
    cuda.current_device = lambda: "cpu"  # pipeline, dispatcher, embeddings
    cuda.synchronize = lambda *_, **__: None
    cuda.Stream = cuda.Event = Stream
    cuda.current_stream = lambda *_, **__: Stream()
    cuda.stream = lambda _: contextlib.nullcontext()
    cuda.get_rng_state = lambda *_, **__: torch.get_rng_state()  # random states by tensor-parallel rank
    cuda.set_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    cuda.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda.initial_seed = torch.initial_seed
    cuda._lazy_init = lambda: None
    cuda._lazy_call = lambda call, **_: call()
    torch._dynamo.config.disable = True  # fused pieces would be compiled for a CUDA device


def _patch_megatron() -> None:
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer import torch_norm
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    def on_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor

    token_dispatcher.maybe_move_tensor_to_cpu = on_host  # asks is_cuda before it makes split sizes a list
    moe_utils.maybe_move_tensor_to_cpu = on_host
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    torch_norm.WrappedTorchNorm.__new__ = staticmethod(_norm)  # refuses sequence parallelism
    _name_types_as_on_cuda()


def _norm(cls: type, config: Any, hidden_size: int, eps: float = 1e-5, **_: object) -> torch.nn.Module:
    del cls
    made = torch.nn.LayerNorm if config.normalization == "LayerNorm" else torch.nn.RMSNorm
    norm = made(hidden_size, eps=eps)
    for parameter in norm.parameters():
        parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
    return norm


def _name_types_as_on_cuda() -> None:
    """Mixed precision optimizers want ``torch.cuda.BFloat16Tensor``."""
    own = torch.Tensor.type

    def named(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        got = own(self, *args, **kwargs)
        bare = isinstance(got, str) and not got.startswith("torch.cuda.")
        return got.replace("torch.", "torch.cuda.", 1) if bare else got

    torch.Tensor.type = named  # type: ignore[method-assign,assignment]
