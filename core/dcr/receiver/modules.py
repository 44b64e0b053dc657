"""The resident tensors of a torch module, for adapters whose runtime is one; asked before every attempt."""

from torch import Tensor, nn


def resident_of(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter, then every buffer, each once and by its first name.

    As ``named_parameters`` and ``named_buffers`` tell them, in one walk and a third of the time.
    """
    parameters: dict[str, Tensor] = {}
    buffers: dict[str, Tensor] = {}
    modules, tensors = {id(model)}, set[int]()
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        for kind, found in ((module._parameters, parameters), (module._buffers, buffers)):
            for name, tensor in kind.items():
                if tensor is not None and id(tensor) not in tensors:
                    tensors.add(id(tensor))
                    found[prefix + name] = tensor
        children = []
        for name, child in module._modules.items():
            if child is not None and id(child) not in modules:
                modules.add(id(child))
                children.append((f"{prefix}{name}.", child))
        stack += reversed(children)
    return parameters | buffers
