"""An event loop in a thread of its own, as an engine's front has it."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """Runs inside the block; what is still waiting in it is then cancelled."""
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever)
    thread.start()
    try:
        yield made
    finally:
        asyncio.run_coroutine_threadsafe(_end_tasks(), made).result(10)
        made.call_soon_threadsafe(made.stop)
        thread.join()
        made.close()


async def _end_tasks() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
