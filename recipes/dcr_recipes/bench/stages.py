"""CPU seconds of the stages of a construction, from the spans that the code marks (docs/architecture.md)."""

import threading
from collections import defaultdict

from dcr.observe import Event


class StageSeconds:
    """Listener that sums what each span costs without the spans inside it, over all threads."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._ended = threading.local()

    def __call__(self, event: Event) -> None:
        """Take an event; spans end before those around them, in the thread that began both."""
        if event.cpu_ns == 0 and event.start_ns == event.end_ns:
            return
        ended: list[tuple[int, int]] = self._ended.__dict__.setdefault("spans", [])
        inside = 0
        while ended and ended[-1][0] >= event.start_ns:
            inside += ended.pop()[1]
        ended.append((event.start_ns, event.cpu_ns))
        with self._lock:
            self.seconds[event.name.removeprefix("owner.")] += (event.cpu_ns - inside) / 1e9
