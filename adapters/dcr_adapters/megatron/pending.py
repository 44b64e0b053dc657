"""Parameters that ``overlap_param_gather`` leaves to the next forward pass.

After an optimizer step each data-parallel rank has only its own part of the new weights; hooks of the
next forward pass gather the rest. A refit comes between the two.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dcr.errors import UnsupportedPath


@contextmanager
def gathered(chunks: Sequence[Any]) -> Iterator[None]:
    """Inside, every parameter of ``chunks`` holds what the last optimizer step made of it.

    ``with gathered(chunks): refit.sync(step)``, on all ranks, which communicate on the way in; forward
    passes overlap again afterwards. Does nothing where parameters are gathered at once.
    """
    waiting = [chunk for chunk in chunks if _gathers_later(chunk)]
    for chunk in waiting:
        chunk.disable_forward_pre_hook(param_sync=True)
    try:
        yield
    finally:
        for chunk in waiting:
            chunk.enable_forward_pre_hook()


def refuse_pending(chunks: Sequence[Any]) -> None:
    """Raise UnsupportedPath if parameters may still be those of before the last step."""
    if any(_gathers_later(chunk) for chunk in chunks):
        raise UnsupportedPath(
            "overlap_param_gather: parameters may be gathered only in the next forward pass; refit inside "
            "'with dcr_adapters.megatron.gathered(model_chunks)', or turn it off"
        )


def _gathers_later(chunk: Any) -> bool:
    config = getattr(chunk, "ddp_config", None)
    overlaps = getattr(config, "overlap_param_gather", False)
    return bool(overlaps and getattr(chunk, "remove_forward_pre_hook_handles", None))
