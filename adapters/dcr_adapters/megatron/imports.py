"""Import the Bridge where what it needs of a CUDA machine is missing: to plan, to convert, to test."""

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

import typing_extensions
from typing_extensions import override

from dcr.errors import ConfigError

STATE_SPACE_KERNELS = ("mamba_ssm", "causal_conv1d")
TRANSFORMER_KERNELS = ("transformer_engine",)
"""Packages of CUDA kernels that layers and the Bridge import but do not run to describe weights.

megatron-core must see the first ones, or it builds no state-space layer, and must not see the
second, or it builds its layers with them.
"""


def import_bridge() -> Any:
    """The ``megatron.bridge`` package, with placeholders for kernels that are not installed.

    Raises:
        ConfigError: megatron-core or Megatron-Bridge are not installed; says how to install them.
    """
    if not hasattr(typing, "override"):  # megatron.training 0.19 takes it from there, Python 3.11 has none
        typing.override = typing_extensions.override  # type: ignore[attr-defined,unused-ignore]
    try:
        _stand_in(STATE_SPACE_KERNELS)
        import megatron.core

        _stand_in(TRANSFORMER_KERNELS)
        import megatron.bridge
    except ModuleNotFoundError as err:
        raise ConfigError(
            f"{err}: Megatron-Bridge is missing; 'make setup-megatron' installs it in .venv-megatron"
        ) from None
    return megatron.bridge


class _Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of absent packages; every attribute of theirs is an empty class."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in self._names:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    @override
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        module.__dict__["__version__"] = "0.0.0"
        return module

    @override
    def exec_module(self, module: types.ModuleType) -> None:
        del module


class _Module(types.ModuleType):
    @override
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        is_norm = (self.__name__, name) == ("mamba_ssm.ops.triton.layernorm_gated", "RMSNorm")
        made = _gated_norm() if is_norm else _Absent(name, (), {})
        setattr(self, name, made)
        return made


class _Absent(type):
    """An attribute of an absent package: a class whose attributes are such classes again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})

    @override
    def __call__(cls, *args: object, **kwargs: object) -> Any:
        """Used as a decorator it gives back what it decorates."""
        del kwargs
        return args[0] if len(args) == 1 and callable(args[0]) else super().__call__()


def _stand_in(names: Sequence[str]) -> None:
    absent = frozenset(name for name in names if importlib.util.find_spec(name) is None)
    if absent:
        sys.meta_path.append(_Placeholders(absent))


def _gated_norm() -> type:
    """The one kernel with a weight: a gated norm of the state-space layers."""
    import torch

    class RMSNorm(torch.nn.Module):
        def __init__(self, size: int, **options: object) -> None:
            super().__init__()
            del options
            self.weight = torch.nn.Parameter(torch.ones(size))

    return RMSNorm
