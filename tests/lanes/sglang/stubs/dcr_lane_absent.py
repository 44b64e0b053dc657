"""Packages that SGLang imports and, on the CPU, never calls: names resolve, and calling one raises.

Only in the SGLang lane's environment (``requirements/sglang.txt``), where a ``.pth`` file names this folder.
The real packages need CUDA libraries.
"""

import importlib.abc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

from typing_extensions import override


class Absent:
    """A name of an absent package, with any attribute. Raises RuntimeError when called."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __getattr__(self, name: str) -> "Absent":
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *args: Any, **named: Any) -> Any:
        raise RuntimeError(f"{self.__name__} is not installed: the lane has a stand-in for its package")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every module below one absent package."""

    def __init__(self, package: str) -> None:
        self._prefix = f"{package}."

    @override
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if not name.startswith(self._prefix):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    @override
    def exec_module(self, module: ModuleType) -> None:
        fill(module)


def fill(module: ModuleType) -> None:
    """Let ``module`` have every name."""

    def missing(name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{module.__name__}.{name}")

    module.__dict__["__getattr__"] = missing


def stand_in(package: str) -> None:
    """Make the imported module ``package`` and all modules below it resolve."""
    fill(sys.modules[package])
    sys.meta_path.append(_Finder(package))
