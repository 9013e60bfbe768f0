"""A tier whose directory is emptied under a real broker: what its files have goes up again, and is read from there later."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cluster import Cluster, eventually
from tests.support.cold_reading import (
    FILE_BYTES,
    FILLER,
    SHORT_LIVES,
    Read,
    by_pull,
    make_cold,
    make_topic,
    send_batch,
    send_filler,
)

pytestmark = pytest.mark.slow

TOPIC = "Kept"
QUEUES = 2
MESSAGES = 10  # of each queue, each time
BODY_BYTES = 2000
SAID = "does not have what was put there"


class Emptied:
    """A cluster, and the directory that is its tier."""

    def __init__(self, root: Path) -> None:
        self.tier, self._root = root / "tier", root
        self.cluster = Cluster(
            root / "cluster",
            controllers=1,
            broker_settings=[f"tiers.url=file://{self.tier}", "tiers.lost_after_ms=3000", *SHORT_LIVES],
        )

    def objects(self) -> list[Path]:
        return [path for path in self.tier.glob(f"*/broker-a/{TOPIC}/*/*/*") if path.is_file()]

    def sent(self, first: int) -> list[Read]:
        """Sent within one file of the log, and in the tier as well; what a reader has to find."""
        eventually("half a file of room", lambda: send_filler(self.cluster) % FILE_BYTES < FILE_BYTES // 2)
        before = self.sizes()
        expected = []
        for queue_id in range(QUEUES):
            bodies = [f"{queue_id}-{first + number} ".encode().ljust(BODY_BYTES, b".") for number in range(MESSAGES)]
            assert send_batch(self.cluster, TOPIC, queue_id, bodies) == first
            expected += [(queue_id, first + number, body) for number, body in enumerate(bodies)]
        eventually(
            "they are in the tier", lambda: len(self._queues_of(self.sizes().items() - before.items())) == QUEUES
        )
        return expected

    def sizes(self) -> dict[Path, int]:
        """Of the objects, which may grow."""
        return {path: path.stat().st_size for path in self.objects()}

    @staticmethod
    def _queues_of(sizes: set[tuple[Path, int]]) -> set[str]:
        return _queues({path for path, _ in sizes})

    def empty(self, times: int) -> None:
        for child in list(self.tier.iterdir()):
            child.rename(self._root / f"away-{times}-{child.name}")
        assert not self.objects()

    def refilled(self) -> bool:
        return len(_queues(self.objects())) == QUEUES


def _queues(objects: list[Path] | set[Path]) -> set[str]:
    return {path.parent.parent.name for path in objects}


def test_what_files_have_goes_up_again_after_the_directory_was_emptied(tmp_path: Path) -> None:
    emptied = Emptied(tmp_path)
    with emptied.cluster as cluster:
        cluster.start()
        make_topic(cluster, FILLER, attributes="+message.type=NORMAL,+tier.enable=false")
        make_topic(cluster, TOPIC, QUEUES)
        old = emptied.sent(0)
        make_cold(cluster)
        assert by_pull(cluster, TOPIC, QUEUES) == old

        local = emptied.sent(MESSAGES)
        emptied.empty(1)
        master = cluster.master()
        eventually("the loss is said", lambda: SAID in cluster.brokers[master].log_text(), 120)
        eventually("what files have is in the tier again", emptied.refilled, 120)
        make_cold(cluster)
        assert by_pull(cluster, TOPIC, QUEUES) == local, "from the tier, and only what was gone is gone"

        local = emptied.sent(2 * MESSAGES)
        emptied.empty(2)
        cluster.brokers[master].kill()
        eventually("another master", lambda: cluster.master() != master)
        eventually("the next one says it too", lambda: SAID in cluster.brokers[cluster.master()].log_text(), 120)
        eventually("what its files have is in the tier again", emptied.refilled, 120)
        cluster.make_whole()
        make_cold(cluster)
        assert by_pull(cluster, TOPIC, QUEUES) == local
