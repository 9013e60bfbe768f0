"""Settings of tiers (`--set tiers.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.store.read_levels import LEVELS, ReadLevel
from remoting.errors import SettingsError
from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Where expired messages are kept, how they come there, and how they are read."""

    url: str = setting(
        "",
        "the object store: file:///directory, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, or memory:/// "
        "for trials; nothing = no tier",
    )
    options_path: str = setting(
        "",
        "a file, mode 0600, with a JSON object of the store's own options, such as endpoint, region, access_key_id and "
        "secret_access_key; without it the store's usual environment variables and the machine's role count",
        path=True,
    )
    request_timeout_ms: int = setting(
        30_000, "a request to the object store that lasts longer has failed", minimum=100, maximum=600_000
    )
    requests_in_flight: int = setting(16, "requests for uploads at the same time", minimum=1, maximum=1000)
    commit_interval_ms: int = setting(
        30_000, "a message waits at most about so long for its upload", minimum=10, maximum=86_400_000, live=True
    )
    state_interval_ms: int = setting(
        10_000,
        "topics, groups and consumer offsets that changed are in the tier so long after, for who mounts it",
        minimum=100,
        maximum=86_400_000,
        live=True,
    )
    lost_after_ms: int = setting(
        86_400_000,
        "objects that are missing in the tier, though its store answers, are given up after this time, and what files have of "
        "them is uploaded again; 0 = as soon as it is seen",
        maximum=876_000 * 3_600_000,
        live=True,
    )
    commit_bytes: int = setting(
        16 << 20, "message bytes of a queue that are uploaded without waiting longer", minimum=1024, maximum=1 << 30
    )
    buffer_bytes: int = setting(
        128 << 20, "bytes that wait for the object store, all together", minimum=1 << 20, maximum=64 << 30
    )
    segment_bytes: int = setting(
        1 << 30,
        "message bytes of an object that small ones of a queue are merged into, at most",
        minimum=1024,
        maximum=64 << 30,
        live=True,
    )
    archive: bool = setting(
        False, "merged messages are compressed, unless their topic says otherwise (tier.archive)", live=True
    )
    reserved_time_ms: int = setting(
        0,
        "messages older than this are removed from the tier, unless their topic says otherwise; 0 = never",
        minimum=0,
        maximum=876_000 * 3_600_000,
        live=True,
    )
    read_level: str = setting(
        ReadLevel.NOT_IN_DISK,
        "what consumers read from the tier: what files do not have (NOT_IN_DISK), also what the disk would have to be read for "
        "(NOT_IN_MEM), all that the tier has (FORCE), or nothing, so that queues begin where files do (DISABLE)",
        choices=LEVELS,
        original="tieredStorageLevel",
    )
    cache_bytes: int = setting(256 << 20, "blocks of the tier kept in memory", minimum=1 << 20, maximum=1 << 40)
    fetches_in_flight: int = setting(
        32, "requests for reads at the same time, all groups together", minimum=1, maximum=1000
    )

    cold_share_percent: int = setting(
        10,
        "while others send or read what is in files, who reads what only the tier has gets so much of the broker's time; all of "
        "it otherwise",
        minimum=1,
        maximum=100,
        live=True,
    )

    def __post_init__(self) -> None:
        check("tiers", self)
        scheme, _, rest = self.url.partition("://")
        if scheme != "file" and ("@" in rest.partition("/")[0] or "?" in rest):
            raise SettingsError(
                "tiers.url is shown to whoever may see the cluster: write nothing secret there, neither user nor query, but "
                "into the file that tiers.options_path names"
            )
