"""Learning over the torture patterns, with the torch of the core lane."""

from dcr.testing.learning_suite import TortureContract


class TestTorture(TortureContract):
    """See ``TortureContract``."""
