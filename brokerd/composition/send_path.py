"""The way of a client's sends into the log, built from a broker's core."""

from __future__ import annotations

from collections.abc import Callable

from brokerd.composition.core import BrokerCore
from brokerd.metadata.service import MetadataService
from brokerd.metadata.tables import Change
from brokerd.processors.sending.general import GeneralSends
from brokerd.processors.sending.send import SendProcessor
from brokerd.retry.service import RetryService
from brokerd.sending.boundary import SendKernel
from brokerd.sending.kernel import Kernel


def build_sends(
    core: BrokerCore,
    retry: RetryService,
    store_host: bytes,
    when_known: Callable[[Callable[[], None]], None],
    call_soon: Callable[[Callable[[], None]], object],
    *,
    make_topics: bool,
) -> SendProcessor:
    """The processor of sends, with its kernel. `when_known` calls back when name servers know the topics; with `make_topics` a
    topic is made when somebody sends to it."""
    kernel: SendKernel = Kernel(store_host, adds_checksums=core.store.adds_checksums)
    _tell_topics(kernel, core.metadata)
    make_topic = core.metadata.make_topic_like if make_topics else None
    general = GeneralSends(core.sender, store_host, retry.sent_again, make_topic, when_known)
    return SendProcessor(core.store, core.appends, kernel, general, core.counters, call_soon)


def _tell_topics(kernel: SendKernel, metadata: MetadataService) -> None:
    """Tell the kernel which topics there are, now and whenever they change."""

    def changed(change: Change) -> None:
        if change.rebuilt:
            kernel.topics_changed({name: metadata.topic(name) for name in {*kernel.topics, *metadata.topics()}})
        elif change.touches_topics:
            kernel.topics_changed({name: metadata.topic(name) for name in (*change.topics_put, *change.topics_deleted)})

    metadata.listeners.append(changed)
    kernel.topics_changed({name: metadata.topic(name) for name in metadata.topics()})
