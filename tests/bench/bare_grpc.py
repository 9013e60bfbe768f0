"""The yardstick of the gRPC rows: a bare grpc.aio server that parses a SendMessage and answers. It stores nothing.

python -m tests.bench.bare_grpc PORT
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from typing import Any

import grpc

from brokerd.proxy.protobuf import definition, service


async def main(port: int) -> None:
    offsets = itertools.count()
    ok = definition.Status(code=definition.Code.Value("OK"), message="OK")

    async def send_message(request: Any, context: Any) -> Any:
        response = service.SendMessageResponse(status=ok)
        for message in request.messages:
            response.entries.add(status=ok, message_id=message.system_properties.message_id, offset=next(offsets))
        return response

    handler = grpc.unary_unary_rpc_method_handler(
        send_message,
        request_deserializer=service.SendMessageRequest.FromString,
        response_serializer=service.SendMessageResponse.SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("apache.rocketmq.v2.MessagingService", {"SendMessage": handler})]
    )
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
