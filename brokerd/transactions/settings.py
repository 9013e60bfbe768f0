"""Settings of transactions (`--set transactions.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import check, setting

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """When producers are asked, how often, and how much may be open."""

    timeout_ms: int = setting(
        6000,
        "a producer that has not decided after this time is asked",
        minimum=0,
        maximum=24 * _HOUR_MS,
        live=True,
        original="transactionTimeOut",
    )
    check_interval_ms: int = setting(
        30_000,
        "how often open transactions are looked at",
        minimum=10,
        maximum=24 * _HOUR_MS,
        live=True,
        original="transactionCheckInterval",
    )
    check_max: int = setting(
        15,
        "after so many checks a transaction is given up, and kept in TRANS_CHECK_MAX_TIME_TOPIC",
        minimum=1,
        maximum=1000,
        live=True,
        original="transactionCheckMax",
    )
    max_immunity_ms: int = setting(
        72 * _HOUR_MS, "longest time that a producer may ask to be left alone", minimum=0, maximum=8760 * _HOUR_MS
    )
    max_open: int = setting(100_000, "most open transactions; more are refused as busy", minimum=1, maximum=10_000_000)
    max_open_bytes: int = setting(
        1 << 30, "most bytes of messages in open transactions; more are refused as busy", minimum=1024, maximum=1 << 44
    )
    reject: bool = setting(False, "refuse transactional messages", live=True, original="rejectTransactionMessage")

    def __post_init__(self) -> None:
        check("transactions", self)
