"""The words that brokers, controllers and the console have for the same things, each set of them once (pure)

A word of a newer version is taken for the most careful one of its set, where there is such a one; a document with another
unknown word is refused.
"""

from __future__ import annotations

from enum import StrEnum


class BrokerRole(StrEnum):
    """What a broker is in its group. None says of itself that it is unreachable: others do, when it does not answer."""

    FENCED = "fenced"
    PROMOTING = "promoting"
    MASTER = "master"
    REPLICA = "replica"
    UNREACHABLE = "unreachable"

    @classmethod
    def _missing_(cls, value: object) -> BrokerRole | None:
        return cls.FENCED if isinstance(value, str) else None


class ControllerRole(StrEnum):
    """What a controller is in its term. Others say unknown or unreachable of one that they do not hear."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    UNKNOWN = "unknown"
    UNREACHABLE = "unreachable"

    @classmethod
    def _missing_(cls, value: object) -> ControllerRole | None:
        return cls.CANDIDATE if isinstance(value, str) else None  # between two terms there are more words


class GroupKind(StrEnum):
    """Who decides the roles of a broker group."""

    CONTROLLERS = "controllers"
    FIXED = "fixed"


class TierCondition(StrEnum):
    """What a broker does with the tier of its group. One that follows reads from it, and uploads nothing."""

    FOLLOWING = "following"
    OPENING = "opening"
    OPEN = "open"
    FENCED = "fenced"

    @classmethod
    def _missing_(cls, value: object) -> TierCondition | None:
        return cls.OPENING if isinstance(value, str) else None


class GroupStart(StrEnum):
    """Where a consumer group starts in a queue in which it has no offset, if the queue is not young.

    At the first message there, behind the last one, or at the last one, as POP does. Unknown: no consumer is there to say so,
    several differ, or they start at a time of their own.
    """

    FIRST = "first"
    END = "end"
    LAST_MESSAGE = "last-message"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> GroupStart | None:
        return cls.UNKNOWN if isinstance(value, str) else None


class TopicKind(StrEnum):
    """What a topic is there for, in the order in which people look for them.

    A consumer group brings retry topics and a dead-letter topic with it; the system's are its own.
    """

    ORDINARY = "ordinary"
    RETRY = "retry"
    DEAD_LETTER = "dead-letter"
    SYSTEM = "system"


class Health(StrEnum):
    """The verdict on the cluster: `down` takes no messages, `degraded` lacks something that protects or restores them."""

    HEALTHY = "healthy"
    DEGRADED = "degraded"
    DOWN = "down"


class DiskPace(StrEnum):
    """How a broker's log becomes durable.

    It stands when a sync has been under way for longer than a setting allows, and is slow from half of that on, and for a while
    behind it. Whoever does not say so is none of these.
    """

    WORKS = "works"
    SLOW = "slow"
    STANDS = "stands"


class Cause(StrEnum):
    """Why the controllers take a broker for dead, or gave its group another master.

    Connection closed, heartbeats stopped, never heard by the leader: of a broker that is gone. Restarted, lost tail: it came back
    as another process, or without the end of its log. Asked: by a person. First master: the group never had one. Candidate came:
    it had none, and now there is one that may lead. No room: its disk took no message, and another one's did. Disk stands: what
    was written to it did not become durable, and what was written to another one's did.
    """

    CLOSED = "connection-closed"
    SILENT = "heartbeats-stopped"
    NEVER_HEARD = "never-heard"
    RESTARTED = "restarted"
    LOST_TAIL = "lost-tail"
    ASKED = "asked"
    FIRST_MASTER = "first-master"
    CANDIDATE_CAME = "candidate-came"
    NO_ROOM = "no-room"
    DISK_STANDS = "disk-stands"
    UNKNOWN = "unknown"

    @classmethod
    def _missing_(cls, value: object) -> Cause | None:
        return cls.UNKNOWN if isinstance(value, str) else None


class HistoryKind(StrEnum):
    """What an entry of the history is about: elections, of a group's master and of the controllers' leader, and faults."""

    ELECTION = "election"
    LEADER = "leader"
    NO_MASTER = "no-master"
    REFUSED = "refused"
    REPLICA_DOWN = "replica-down"
    OUT_OF_SYNC = "out-of-sync"
    LEADERLESS = "leaderless"
    CONTROLLER_DOWN = "controller-down"
    PROCESS_DOWN = "process-down"

    @property
    def is_election(self) -> bool:
        return self in (HistoryKind.ELECTION, HistoryKind.LEADER)


class Severity(StrEnum):
    """How bad a reason of the verdict is."""

    CRITICAL = "critical"
    WARNING = "warning"


class Outcome(StrEnum):
    """What became of a change at one node."""

    CONFIRMED = "CONFIRMED"
    UNCHANGED = "UNCHANGED"
    UNKNOWN = "UNKNOWN"
    NOT_ATTEMPTED = "NOT_ATTEMPTED"
    REFUSED = "REFUSED"
