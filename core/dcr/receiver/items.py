"""What an item must say of itself before anything is written (DESIGN P8, P15, P16)."""

from collections.abc import Mapping

from dcr.codec import Item
from dcr.errors import AttemptFailed
from dcr.model import Encoding, PathClass, TensorSpec
from dcr.receiver.rank import RankPath


def validate(
    item: Item, specs: Mapping[str, TensorSpec], paths: Mapping[str, RankPath], *, allow_xor: bool
) -> None:
    """Check ``item`` against catalogue and classification.

    ``allow_xor`` false is the receiver's own rule for torn storage: no value that builds on what is there.

    Raises:
        AttemptFailed: names the tensor and the field.
    """
    spec = specs.get(item.name)
    if spec is None:
        raise AttemptFailed(f"{item.name}: the catalogue has no such tensor")
    if item.dtype != spec.dtype or tuple(item.shape) != spec.shape:
        raise AttemptFailed(
            f"{item.name}: the item is {item.dtype} {tuple(item.shape)}, the catalogue says "
            f"{spec.dtype} {spec.shape}; a changed shape or dtype needs a new run"
        )
    if not item.num_entries:
        return
    if item.positions[0] < 0 or item.positions[-1] >= spec.num_elements:
        raise AttemptFailed(f"{item.name}: locations leave its {spec.num_elements} elements")
    if spec.dtype == "bool" and int(item.values.max()) > 1:
        raise AttemptFailed(f"{item.name}: {int(item.values.max()):#x} is not the stored form of a bool")
    if item.encoding is not Encoding.OVERWRITE:
        _validate_difference(item, paths[item.name].path, allow_xor=allow_xor)


def _validate_difference(item: Item, path: PathClass, *, allow_xor: bool) -> None:
    if not allow_xor:
        raise AttemptFailed(
            f"{item.name}: {item.encoding.upper()} onto storage that an earlier attempt may have torn (P8)"
        )
    if path not in (PathClass.XOR, PathClass.SKIP):
        raise AttemptFailed(f"{item.name}: its loader path takes {path} only, not {item.encoding.upper()}")
    if item.encoding is Encoding.DELTA16 and item.values.itemsize != 2:
        raise AttemptFailed(f"{item.name}: delta16 is for types of 2 bytes, {item.dtype} is none")
