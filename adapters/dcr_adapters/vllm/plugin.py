"""What vLLM calls in each of its processes (entry point group ``vllm.general_plugins``).

Changes nothing in an engine whose configuration does not name DCR: see ``keep_unpacked.wanted``.
"""

from dcr_adapters.vllm import keep_unpacked

BACKEND = "dcr"
"""Name of the weight transfer engine, for ``weight_transfer_config``."""
EXTENSION = "dcr_adapters.vllm.worker.DcrWorkerExtension"
"""For ``worker_extension_cls``."""


def register() -> None:
    """Offer the weight transfer engine and keep weights loadable on the CPU. Idempotent."""
    from vllm.distributed.weight_transfer import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            BACKEND, "dcr_adapters.vllm.engine", "DcrWeightTransferEngine"
        )
    keep_unpacked.install()
