"""Ports between the protocol and whatever moves bytes (paper section 7, DESIGN R18, P6, P7)."""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from dcr.model import AttemptId, Manifest, OwnerClose, PayloadRef


class ObjectStore(Protocol):
    """Flat namespace of immutable objects. Keys are ``/``-separated, relative and ASCII.

    Every method may raise StoreError; a reader never sees part of an object.
    """

    def put(self, key: str, data: bytes) -> None:
        """Create the object durably; writing the same bytes again is no error.

        Raises:
            Conflict: the key exists with other bytes; it keeps them.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object.

        Raises:
            MissingObject: there is none.
        """
        ...

    def list(self, prefix: str) -> list[str]:
        """Keys that start with ``prefix``, sorted."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; a missing one is no error."""
        ...


@runtime_checkable
class Sweepable(Protocol):
    """A store in which a writer that dies leaves something that is no object."""

    def sweep(self, prefix: str) -> int:
        """Remove what writers left under ``prefix``, to which nobody writes any more; how much it was."""
        ...


@runtime_checkable
class Probed(Protocol):
    """A store or control plane whose server may not keep what it promises."""

    def check(self) -> None:
        """See whether it does; call it once at the start. Raises ConfigError or StoreError."""
        ...


class Outlet(Protocol):
    """Where an owner's payloads go: ``publish``* then ``close``."""

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """Send one payload; see ``Transport.publish``."""
        ...

    def close(self, close: OwnerClose) -> None:
        """Declare the owner's list complete; see ``Transport.close``."""
        ...


class Transport(Protocol):
    """Moves one attempt's payloads from owners to receivers; both sides hold one, bound to a run.

    Call order on the owner's side: ``publish``* then ``close``; on the receiver's: ``fetch``
    repeatedly. ``stop_and_wait`` may come at any time on either side.
    """

    def publish(self, attempt: AttemptId, ref: PayloadRef, data: bytes) -> None:
        """Send one payload; returns when it is durable (object store) or queued (relay).

        Raises:
            AttemptFailed: ``attempt`` was stopped here.
        """
        ...

    def close(self, close: OwnerClose) -> None:
        """Declare the owner's list complete; nothing may be published by it afterwards."""
        ...

    def fetch(
        self, attempt: AttemptId, seen: Collection[tuple[int, int]]
    ) -> Iterator[tuple[PayloadRef, bytes]]:
        """Yield what is visible of ``attempt`` now and whose (owner, sequence) is not in ``seen``.

        Bytes are untrusted: ``ref`` is what the transport claims.
        """
        ...

    def stop_and_wait(self, attempt: AttemptId) -> None:
        """Return when nothing of ``attempt`` can still be published or delivered through this end."""
        ...


@dataclass(frozen=True, slots=True)
class Anchor:
    """A later version's planes, whole, beside the delta that led to it (B5).

    ``attempt`` committed the version and ``link`` is the digest of the manifest that it was committed
    with; ``manifest`` is that of the anchor's own list, of ``num_bytes`` payload bytes. ``step`` is the
    training step.
    """

    attempt: AttemptId
    link: str
    manifest: str
    num_bytes: int
    step: int


@dataclass(frozen=True, slots=True)
class Retained:
    """Where chains may begin: ``anchors``, newest first. Versions before ``floor`` are not kept."""

    floor: int
    anchors: tuple[Anchor, ...]


class Archive(Protocol):
    """Durable, immutable objects of a run that outlive attempts: manifests, tables, committed payloads."""

    def put_object(self, kind: str, data: bytes) -> str:
        """Store ``data`` under its own digest and return the digest; idempotent. ``kind`` groups keys."""
        ...

    def get_object(self, kind: str, digest: str) -> bytes:
        """Return an object whose bytes were verified against ``digest``.

        Raises:
            MissingObject: it is not there.
            PayloadError: the stored bytes do not have that digest.
        """
        ...

    def get_payload(self, manifest: Manifest, ref: PayloadRef) -> bytes:
        """Return the bytes of a payload that ``manifest`` names (unverified; the codec parses them)."""
        ...

    def retained(self) -> Retained:
        """Which later anchors there are now, and which versions are kept."""
        ...

    def reading(self, version: int) -> AbstractContextManager[Callable[[], None]]:
        """Nothing that ``version`` and later ones need is pruned inside the block.

        It gives what must be called now and then while it lasts. Raises IntegrityError if ``version`` is
        not kept.
        """
        ...
