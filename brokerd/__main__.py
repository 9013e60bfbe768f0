"""`python -m brokerd`: one replica of one broker group, until SIGTERM or a failure of its disk."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from dataclasses import replace

import uvloop

from brokerd.assembly import Broker, choose_native
from brokerd.composition.mending import mend_directory, start_mended
from brokerd.composition.mounting import look_for_mount, release_mount, take_mount
from brokerd.composition.settings import BrokerSettings, parse
from brokerd.loop import tuning
from remoting import exit_codes
from remoting.errors import LogboomError

log = logging.getLogger("brokerd")


async def serve(settings: BrokerSettings) -> int:
    """Run the broker; the exit code."""
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[None] = loop.create_future()

    def stop() -> None:
        if not stopping.done():
            stopping.set_result(None)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    native = choose_native(settings)
    mount = None
    if settings.mount:
        taking = asyncio.ensure_future(take_mount(settings))
        await asyncio.wait((taking, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not taking.done():
            taking.cancel()
            return exit_codes.STOPPED
        mount = taking.result()
    elif settings.tiers.url:
        await look_for_mount(settings)
    broker = await start_mended(
        lambda ask_first: Broker(settings, native, ask_first=ask_first, mount=mount),
        lambda met: mend_directory(settings, met),
    )
    tuning.settle()
    await broker.start()
    await asyncio.wait((stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    failed = broker.failed.done()
    if failed:
        log.critical("stopping: %s", broker.failed.result())
    await broker.stop()
    if not failed:
        return exit_codes.STOPPED
    log.critical("stopped: %s", broker.failed.result())  # the last line is what a supervisor shows
    return exit_codes.FAILED


def _with_files(settings: BrokerSettings) -> BrokerSettings:
    """The same for as many clients as there may be files for."""
    flow, grpc = settings.flow, settings.grpc
    remoting_clients, grpc_clients = tuning.allow_files(flow.max_connections, grpc.max_connections)
    return replace(
        settings,
        flow=replace(flow, max_connections=remoting_clients),
        grpc=replace(grpc, max_connections=grpc_clients),
    )


def main() -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        settings = parse(sys.argv[1:])
        if settings.release_mount:
            sys.stdout.write(asyncio.run(release_mount(settings)) + "\n")
            return exit_codes.STOPPED
        tuning.keep_freed_memory()
        code: int = uvloop.run(serve(_with_files(settings)))
    except LogboomError as error:
        sys.stderr.write(f"brokerd: {error}\n")
        return exit_codes.FAILED
    return code


if __name__ == "__main__":
    sys.exit(main())
