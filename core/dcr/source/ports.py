"""What a training framework must offer (DESIGN R20). Kept beside its consumer, the owner."""

from collections.abc import Sequence
from typing import Protocol

from dcr.model import TensorSpec
from dcr.source.detect import Candidate
from dcr.source.task import AffineTask


class ShardSource(Protocol):
    """One trainer rank's shards. Geometry is fixed for the life of the object.

    Between ``OwnerAgent.present`` and the end of the transition the weights must not be written:
    retries read them again (P5).
    """

    def tensors(self) -> tuple[TensorSpec, ...]:
        """Every canonical tensor of the model, equal on all ranks and in the same order."""
        ...

    def tasks(self) -> Sequence[AffineTask]:
        """The tasks whose source elements this rank holds, replicas included; may be empty."""
        ...

    def read(self, task: AffineTask) -> Candidate:
        """Stored canonical bits of the task's candidate shard (after the source projection Q_T).

        Returns a contiguous unsigned array [task.num_elements], which may alias live weights. Weights
        on another device are given as a tensor of the served dtype with that many elements: it is
        compared where it lies. Called in several threads at once, for different tasks.

        Raises:
            UnsupportedPath: the weights' dtype is no longer the one the task declares.
        """
        ...

    def counters(self) -> str:
        """Digest of the parameters' version counters: an early warning that weights were written."""
        ...
