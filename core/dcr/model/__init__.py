"""The nouns of the paper as frozen dataclasses, and their one JSON form.

Nothing here has behaviour beyond small derived properties: tensors are described and looked at, never held.
"""

from dcr.model.catalogue import Catalogue, TensorSpec
from dcr.model.diagnosis import (
    AuditFinding,
    AuditProgress,
    RankDiagnosis,
    ReceiverDiagnosis,
    TensorChoice,
)
from dcr.model.dtypes import Bits, bits_dtype, known_dtypes, stored_bits, width_bytes
from dcr.model.ids import GENESIS, AttemptId, CandidateId, RunId, new_nonce
from dcr.model.manifest import AuditDigest, AuditTable, Manifest, OwnerClose, PayloadRef
from dcr.model.messages import (
    ApplyAck,
    Classification,
    Encoding,
    LeaseGrant,
    OwnerReport,
    PathClass,
    ReceiverAudit,
    ReceiverReport,
    ReceiverState,
    StagedAck,
)
from dcr.model.record import ActiveAttempt, CommitRecord, ControlState
from dcr.model.wire import digest_hex, from_json, to_json

__all__ = [
    "GENESIS",
    "ActiveAttempt",
    "ApplyAck",
    "AttemptId",
    "AuditDigest",
    "AuditFinding",
    "AuditProgress",
    "AuditTable",
    "Bits",
    "CandidateId",
    "Catalogue",
    "Classification",
    "CommitRecord",
    "ControlState",
    "Encoding",
    "LeaseGrant",
    "Manifest",
    "OwnerClose",
    "OwnerReport",
    "PathClass",
    "PayloadRef",
    "RankDiagnosis",
    "ReceiverAudit",
    "ReceiverDiagnosis",
    "ReceiverReport",
    "ReceiverState",
    "RunId",
    "StagedAck",
    "TensorChoice",
    "TensorSpec",
    "bits_dtype",
    "digest_hex",
    "from_json",
    "known_dtypes",
    "new_nonce",
    "stored_bits",
    "to_json",
    "width_bytes",
]
