"""How the process uses memory and the interpreter, for a daemon whose event loop must not pause."""

from __future__ import annotations

import ctypes
import gc
import logging
import resource
import sys
from typing import Final

log = logging.getLogger(__name__)

# glibc's mallopt: how much free memory at the end of the heap is kept, and from which size on memory is mapped apart
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 8 << 20
_MAPPED_BYTES: Final = 4 << 20
_OTHER_FILES: Final = 4000  # those of the log and its queues, what a replica dials for its clients, other brokers


def keep_freed_memory() -> None:
    """Keep some of what was freed for the next read event.

    Every turn of the loop frees some hundred kilobytes of frames and records and needs as much again. By default glibc gives them
    back to the system in between, and the system clears each page anew. Without glibc nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def allow_files(remoting_clients: int, grpc_clients: int) -> tuple[int, int]:
    """Let the process open as many files as so many clients and all else need, as far as its hard limit goes; how many clients
    may be connected then.

    A broker without a file left could not open files of its log: so clients get what a low limit has beside these, or half.
    """
    clients = remoting_clients + grpc_clients
    wanted = clients + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return remoting_clients, grpc_clients
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == wanted:
        return remoting_clients, grpc_clients
    room = min(clients, allowed - min(_OTHER_FILES, allowed // 2))
    fewer = max(1, remoting_clients * room // clients), max(1, grpc_clients * room // clients)
    log.warning(
        "at most %d files may be open, so %d remoting clients may be connected (flow.max_connections=%d), and %d over gRPC "
        "(grpc.max_connections=%d): for all of them and %d files beside raise the hard limit to %d (ulimit -Hn, LimitNOFILE=)",
        *(allowed, fewer[0], remoting_clients, fewer[1], grpc_clients, _OTHER_FILES, wanted),
    )
    return fewer


def settle() -> None:
    """Everything is built: look at it no more, and let the helper threads have the interpreter soon."""
    # What was built at start lives as long as the process: the collector need not look at it again, and a full collection in
    # the middle of a send would be a pause that looks like a freeze to the controllers.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    # The flusher needs the interpreter for microseconds between two syncs; it should not wait for a long turn of the loop.
    sys.setswitchinterval(0.0005)
