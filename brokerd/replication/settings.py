"""The settings of replication. Times are milliseconds on the monotonic clock."""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.replication.rocketmq_peers import RocketmqPeers, host_of
from remoting.errors import SettingsError
from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class ReplicationSettings:
    """How a broker acknowledges, follows and notices failures."""

    roles: str = setting(
        "controllers",
        "who decides the roles of this group: controllers elect, or they are fixed: broker_id 0 is the master",
        choices=("controllers", "fixed"),
    )
    broker_id: int = setting(0, "fixed roles: this broker's id, 0 = the master", minimum=0, maximum=98)
    fixed_master: str = setting("", "fixed roles, on replicas: host:port where the master listens for remoting clients")
    total_replicas: int = setting(
        1,
        "fixed roles: brokers in the group, the master included; ids are 0 to this - 1",
        minimum=1,
        maximum=99,
        original="totalReplicas",
    )
    acting_master: bool = setting(
        False,
        "fixed roles: while the master is away the replica with the lowest id serves reads in its place",
        original="enableSlaveActingMaster",
    )

    ack_after: str = setting(
        "flush",
        "what a replica's acknowledgement means: flush = on its disk, append = in its memory",
        choices=("flush", "append"),
    )
    all_ack_in_sync_state_set: bool = setting(
        True,
        "every member of the sync-state set must have a message; false is weak: a failover may lose what was acknowledged",
        live=True,
        original="allAckInSyncStateSet",
    )
    in_sync_replicas: int = setting(
        1,
        "copies that make an acknowledgement when not all members must have it, the master's included",
        minimum=1,
        maximum=99,
        live=True,
        original="inSyncReplicas",
    )
    min_in_sync_replicas: int = setting(
        1,
        "with fewer members than this in the sync-state set nothing is accepted",
        minimum=1,
        maximum=99,
        live=True,
        original="minInSyncReplicas",
    )
    auto_in_sync_replicas: bool = setting(
        False,
        "fixed roles: ask for fewer copies while fewer replicas are in sync, down to min_in_sync_replicas",
        live=True,
        original="enableAutoInSyncReplicas",
    )
    max_gap_not_in_sync_bytes: int = setting(
        256 << 20,
        "fixed roles: a replica that lacks less than this is in sync",
        minimum=0,
        maximum=1 << 50,
        live=True,
        original="haMaxGapNotInSync",
    )
    plain_peers: str = setting(
        "",
        "addresses and networks of brokers that may replicate without proving themselves, separated by commas: those of Apache "
        "RocketMQ, which cannot; empty = nobody",
    )
    classic_peers: bool = setting(
        False, "plain peers may be replicas that know no controllers; they are sent the log and counted nowhere"
    )
    classic_master: str = setting(
        "", "host:port of the replication of a master that knows no controllers: copy it, and take part in nothing else"
    )
    plain_silence_limit_ms: int = setting(
        20_000, "the same for plain peers, which say something every 5 seconds", minimum=100, maximum=600_000
    )
    sync_from_last_file: bool = setting(
        False, "with an empty log, copy from the master's last file on, not its whole history"
    )
    max_transfer_bytes_per_s: int = setting(
        0, "how fast the log is sent to one replica, 0 = no limit", minimum=0, maximum=1 << 40
    )
    learner: bool = setting(
        False, "copy the log, but never enter the sync-state set and never become master", original="asyncLearner"
    )
    ack_timeout_ms: int = setting(
        3000, "how long a send waits for replicas", minimum=100, maximum=600_000, live=True, original="slaveTimeout"
    )
    flush_timeout_ms: int = setting(
        5000,
        "how long a send waits for the own disk",
        minimum=100,
        maximum=600_000,
        live=True,
        original="syncFlushTimeout",
    )
    disk_stands_ms: int = setting(
        1000,
        "a disk whose sync of the log takes longer stands still: another master is elected, if another one's works; 0 = never",
        minimum=0,
        maximum=600_000,
        live=True,
    )
    max_waiting_acks: int = setting(
        100_000, "appends that may wait for replicas at once", minimum=1, maximum=10_000_000
    )
    max_waiting_bytes: int = setting(
        256 << 20,
        "bytes of the log that may wait for replicas or the own disk at once",
        minimum=4096,
        maximum=1 << 40,
    )

    heartbeat_ms: int = setting(
        250,
        "master and replica say something at least this often",
        minimum=50,
        maximum=60_000,
        original="haSendHeartbeatInterval",
    )
    silence_floor_ms: int = setting(
        1000, "a replica silent for less than this is never disconnected", minimum=100, maximum=600_000
    )
    silence_limit_ms: int = setting(
        1500,
        "a replica silent for longer than this always is; between the two its regularity decides",
        minimum=100,
        maximum=600_000,
    )
    not_caught_up_ms: int = setting(
        1500,
        "a member of the sync-state set that has not had the whole log for this long is proposed out",
        minimum=100,
        maximum=600_000,
        live=True,
        original="haMaxTimeSlaveNotCatchup",
    )
    # The grace covers a replica that dials again at once. For a killed one it is the whole stall of the sends, so it is short.
    reconnect_grace_ms: int = setting(
        100, "a member whose connection went away is proposed out after this time", minimum=0, maximum=60_000
    )
    hold_log_ms: int = setting(
        600_000,
        "the log is kept for this long for a replica that is away, from where it was",
        minimum=0,
        maximum=86_400_000,
        live=True,
    )
    hold_log_bytes: int = setting(
        16 << 30,
        "most of the log that is kept for replicas that are away; when the disk is full nothing is",
        minimum=0,
        maximum=1 << 50,
        live=True,
    )
    proposal_retry_ms: int = setting(250, "pause after an unanswered or refused proposal", minimum=10, maximum=60_000)
    rejoin_delay_ms: int = setting(1000, "pause before a refused replica may join again", minimum=0, maximum=600_000)
    transfer_batch_bytes: int = setting(1 << 20, "largest batch to a replica", minimum=4096, maximum=64 << 20)
    max_connections: int = setting(32, "replicas that may be connected at once", minimum=1, maximum=1000)

    controller_heartbeat_ms: int = setting(250, "heartbeat to every controller", minimum=50, maximum=60_000)
    controller_heartbeat_timeout_ms: int = setting(
        1500,
        "controllers take this broker for dead after this silence, earlier if it spoke regularly",
        minimum=200,
        maximum=600_000,
    )
    controller_poll_ms: int = setting(1000, "how often the role is asked for", minimum=50, maximum=600_000)
    controller_request_timeout_ms: int = setting(1000, "time for an answer of a controller", minimum=50, maximum=60_000)
    name_server_register_ms: int = setting(
        10_000,
        "how often the broker registers again",
        minimum=500,
        maximum=600_000,
        original="registerNameServerPeriod",
    )
    election_priority: int = setting(
        2**31 - 1,
        "among equals the replica with the lowest value is elected",
        minimum=0,
        maximum=2**31 - 1,
        live=True,
        original="brokerElectionPriority",
    )

    def __post_init__(self) -> None:
        check("replication", self)
        RocketmqPeers(self.plain_peers)
        if self.classic_master and not RocketmqPeers(self.plain_peers).allows(host_of(self.classic_master)):
            raise SettingsError(
                f"replication.classic_master={self.classic_master} cannot prove itself: list its host in replication.plain_peers"
            )
        if self.silence_limit_ms < 2 * self.heartbeat_ms:
            raise SettingsError("replication.silence_limit_ms must be at least twice replication.heartbeat_ms")
        if self.silence_limit_ms < self.silence_floor_ms:
            raise SettingsError("replication.silence_floor_ms must not be above replication.silence_limit_ms")
        if self.controller_heartbeat_timeout_ms < 2 * self.controller_heartbeat_ms:
            raise SettingsError(
                "replication.controller_heartbeat_timeout_ms must be at least twice replication.controller_heartbeat_ms"
            )

    @property
    def ack_after_flush(self) -> bool:
        return self.ack_after == "flush"
