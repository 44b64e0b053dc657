"""The writer of an instance whose only rank is in this process."""

from dcr.model import Catalogue
from dcr.receiver.apply import Applier
from dcr.receiver.ports import NativeLoader
from dcr.receiver.writer import Writer


def local_writer(loader: NativeLoader, catalogue: Catalogue) -> Writer:
    """A ``Writer`` over one native loader."""
    return Applier(loader, catalogue)
