"""Which send kernel tests are given: that in Python, or with the fixture `both_kernels` each in turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from brokerd.native.library import Library
from brokerd.sending.boundary import SendKernel, Source, Taken
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.stored_form import KernelRules
from brokerd.store.run import Run

_libraries: list[Library] = []  # the last one is in use


def make_kernel(store_host: bytes, rules: KernelRules | None = None) -> SendKernel:
    """A kernel of the kind that is asked for at present."""
    return NativeKernel(_libraries[-1], store_host, rules) if _libraries else Kernel(store_host, rules)


def take_one(kernel: SendKernel, run: Run, buffer: bytes, position: int, peer: bytes, most: int) -> Taken:
    """Have the kernel take of what one peer sent."""
    [taken] = kernel.take(run, [Source(buffer, position, peer, most)])
    return taken


@contextmanager
def native_kernels(library: Library) -> Iterator[None]:
    """Until the end, kernels are in C."""
    _libraries.append(library)
    try:
        yield
    finally:
        _libraries.pop()
