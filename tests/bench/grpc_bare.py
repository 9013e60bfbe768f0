"""What the gRPC port is measured against: a bare `grpc.aio` server that parses a send, answers it, and stores nothing.

python -m tests.bench.grpc_bare PORT
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc

from brokerd.proxy.protobuf import service
from brokerd.proxy.status import Code


async def send(request: Any, context: Any) -> Any:
    message = request.messages[0]
    response = service.SendMessageResponse()
    response.status.code = Code.OK
    entry = response.entries.add(message_id=message.system_properties.message_id, offset=1)
    entry.status.code = Code.OK
    return response


async def main(port: int) -> None:
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(
        send,
        request_deserializer=service.SendMessageRequest.FromString,
        response_serializer=service.SendMessageResponse.SerializeToString,
    )
    methods = {"SendMessage": handler}
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", methods),)
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
