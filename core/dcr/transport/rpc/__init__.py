"""Control messages between processes: JSON over HTTP, one POST ``/<method>`` a call.

Body: a JSON object of the method's named parameters, checked against the handler's annotations.
Answer: 200 and the result, or 4xx/5xx and ``{"error": {"type": ..., "message": ...}}``, where the
type is a class of ``dcr.errors``, raised again on the calling side. Nothing is retried here.
"""

from dcr.transport.rpc.client import Client
from dcr.transport.rpc.server import RpcServer, serve
from dcr.transport.rpc.wire import MAX_BODY_BYTES

__all__ = ["MAX_BODY_BYTES", "Client", "RpcServer", "serve"]
