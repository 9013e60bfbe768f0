"""`python -m controllerd`: run one controller until SIGTERM or SIGINT. Logs go to stderr, one line per event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from typing import Final

import uvloop

from controllerd.assembly import Controller
from controllerd.comeback import come_back
from controllerd.raft.driver import CopiedDirectory, MemberRemoved
from controllerd.raft.log import LostLog
from controllerd.settings import ControllerSettings, parse
from remoting import exit_codes
from remoting.disk import LocalDisk
from remoting.errors import LogboomError

log = logging.getLogger("controllerd")

_EXIT_CODES: Final = {MemberRemoved: exit_codes.NOT_NEEDED, CopiedDirectory: exit_codes.REFUSED}


async def _serve(settings: ControllerSettings, disk: LocalDisk) -> None:
    running = asyncio.ensure_future(_live(settings, disk))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def _live(settings: ControllerSettings, disk: LocalDisk) -> None:
    """Run one incarnation after the other: each ends when it turns out that its files lost what it promised."""
    while True:
        try:
            await Controller(settings, disk).run()
        except LostLog as error:
            await come_back(settings, disk, str(error))


def main() -> int:
    """Run; the result is one of `exit_codes`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    try:
        settings = parse(sys.argv[1:])
        disk = LocalDisk(settings.data)
    except LogboomError as error:
        log.error("cannot start: %s", error)
        return exit_codes.REFUSED
    try:
        uvloop.run(_serve(settings, disk))
    except LogboomError as error:
        log.error("stopped: %s", error)
        return _EXIT_CODES.get(type(error), exit_codes.FAILED)
    finally:
        disk.close()
    log.info("stopped")
    return exit_codes.STOPPED


if __name__ == "__main__":
    sys.exit(main())
