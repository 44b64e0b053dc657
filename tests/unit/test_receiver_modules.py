"""One walk over a module gives what torch's two give."""

import torch
from torch import nn

from dcr.receiver.modules import modules_of, resident_of


class _Shared(nn.Module):
    """Tied parameters, a shared child, an absent child, parameter and buffer, buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        below = nn.Linear(2, 2)
        self.holder = nn.Sequential(nn.Sequential(below))
        self.below = below
        self.embed = nn.Embedding(4, 3)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))] * 2)
        self.inner = nn.Sequential(nn.Linear(3, 4), self.layers[0])
        self.head = nn.Linear(3, 4)
        self.head.weight = self.embed.weight
        self.nothing = None
        self.register_parameter("absent", None)
        self.register_module("gone", None)
        table = torch.zeros(2)
        self.register_buffer("table", table, persistent=False)
        self.register_buffer("unset", None)
        self.inner.register_buffer("again", table)


def test_names_order_and_tensors_are_torchs_own() -> None:
    """First names win, parameters come first, and the tensors are the live ones."""
    model = _Shared()
    expected = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    found = resident_of(model)
    assert list(found) == list(expected)
    assert all(found[name] is tensor for name, tensor in expected.items())


def test_modules_are_torchs_own() -> None:
    """A module that is reached twice has the name under which it comes first in depth."""
    model = _Shared()
    expected = [(f"{name}." if name else "", module) for name, module in model.named_modules()]
    assert list(modules_of(model)) == expected


def test_a_rebound_parameter_is_found() -> None:
    """Nothing is remembered between two calls."""
    model = nn.Linear(2, 2)
    before = resident_of(model)["weight"]
    model.weight = nn.Parameter(torch.ones(2, 2))
    assert resident_of(model)["weight"] is model.weight is not before
