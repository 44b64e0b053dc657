"""The control tensor: how a call reaches SGLang's workers, and how their answers come back (DESIGN R9).

SGLang hands tensors to a custom weight loader in every worker and lets it answer nothing; an exception in
it ends the scheduler. So the one tensor sent is JSON text, and each rank writes its answer to a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcr.errors import PayloadError
from dcr.model import from_json, to_json
from dcr.receiver.workers.messages import Answer, Calls

if TYPE_CHECKING:
    import torch

LOADER = "dcr_adapters.sglang.worker.dcr_call"
"""For ``custom_weight_loader``, and the load format of each call."""
SESSION = "dcr.call"
"""Id of the requests that begin and end the update session of a call."""
_NAME = "dcr.control"


@dataclass(frozen=True, slots=True)
class Control:
    """One collective call. ``answers``: what the answers' files begin with; one a rank."""

    calls: Calls
    answers: str

    def file(self, rank: int) -> Path:
        """Where ``rank`` answers."""
        return Path(f"{self.answers}.{rank}")


def to_tensors(control: Control) -> list[tuple[str, "torch.Tensor"]]:
    """What ``update_weights_from_tensor`` takes: one uint8 tensor on the host."""
    import torch

    return [(_NAME, torch.frombuffer(bytearray(to_json(control)), dtype=torch.uint8))]


def from_tensors(tensors: Sequence[tuple[str, "torch.Tensor"]]) -> Control:
    """What ``to_tensors`` made, wherever SGLang has moved it since. Raises PayloadError."""
    if [name for name, _ in tensors] != [_NAME]:
        raise PayloadError(f"control tensor: got {[name for name, _ in tensors]}, expected {_NAME}")
    return from_json(Control, tensors[0][1].cpu().numpy().tobytes())


def write_answer(path: Path, answer: Answer) -> None:
    """Whole or not at all. Raises OSError."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_bytes(to_json(answer))
    draft.rename(path)
