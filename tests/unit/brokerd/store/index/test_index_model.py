"""The index against a dictionary, through appends, cuts, retention, checkpoints that fail, and every kind of end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerd.native.library import Library
from brokerd.store.index import key_index
from brokerd.store.index.key_index import PATH
from brokerd.store.index.layout import DIRECTORY
from brokerd.store.log.retention import RetentionDecision
from brokerd.store.start.checkpoint_page import PATH as CHECKPOINT_PATH
from brokerd.store.start.checkpoint_page import decode_page
from brokerd.store.store import MessageStore
from remoting.errors import StorageError
from remoting.record.layout import SYS_TRANSACTION_ROLLBACK
from remoting.record.properties import encode_properties
from tests.support.disks import FaultyDisk, MemoryDisk
from tests.support.examples import examples
from tests.support.native_library import native_library
from tests.unit.brokerd.store.index.finding import catch_up, find
from tests.unit.brokerd.store.stores import Clock, dispatch_all, draft, make_store, open_store, put, sync

TOPICS = ("TopicA", "TopicB", "%RETRY%g")
KEYS = ("Aa", "BB", "k", "order", "名", "polygenelubricants")
MOST = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def _every_checkpoint_writes_the_index() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_index, "_PATIENCE", 1)
        yield


class IndexMachine(RuleBasedStateMachine):
    """`messages` are (topic, keys, physical offset, end) of what is in the log, in its order."""

    library: Library | None = None

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.disk = FaultyDisk(Random(seed))
        self.clock = Clock()
        self.store: MessageStore = open_store(self.disk, self.clock, library=self.library)
        self.messages: list[tuple[str, frozenset[str], int, int]] = []
        self.number = 0
        self.expired = False

    @rule(
        topic=st.sampled_from(TOPICS),
        words=st.lists(st.sampled_from(KEYS), max_size=4),
        unique=st.booleans(),
        rolled_back=st.integers(0, 9).map(lambda n: n == 0),
        size=st.integers(1, 300),
        later_ms=st.integers(0, 5000),
        count=st.integers(1, 12),
        seen=st.sampled_from(["no", "yes", "indexed", "indexed", "indexed"]),
    )
    def append(
        self,
        topic: str,
        words: list[str],
        unique: bool,
        rolled_back: bool,
        size: int,
        later_ms: int,
        count: int,
        seen: str,
    ) -> None:
        for _ in range(count):
            self.clock.now_ms += later_ms
            self.number += 1
            properties = {"UNIQ_KEY": f"ID{self.number:030d}"} if unique else {"TAGS": "t"}
            flag = SYS_TRANSACTION_ROLLBACK if rolled_back else 0
            encoded = encode_properties({**properties, "KEYS": " ".join(words)})
            [result] = put(
                self.store, draft(b"b" * size, topic=topic, properties=encoded, sys_flag=flag), visible=False
            )
            keys = frozenset([*words, *([properties["UNIQ_KEY"]] if unique else [])])
            self.messages.append((topic, frozenset() if rolled_back else keys, *result[:1], result.end_offset))
        if seen != "no":
            dispatch_all(self.store)
        if seen == "indexed":
            catch_up(self.store)

    @rule()
    def show(self) -> None:
        dispatch_all(self.store)

    @rule(most=st.integers(100, 6000))
    def read_on(self, most: int) -> None:
        assert self.store.index is not None
        self.store.index.take(self.store.dispatch_offset, most)

    @rule()
    def checkpoint(self) -> None:
        self.store.checkpoint()

    @rule(failing_write=st.integers(1, 8), cut_between=st.booleans(), data=st.data())
    def checkpoint_fails(self, failing_write: int, cut_between: bool, data: st.DataObject) -> None:
        """The disk refuses a write in the middle, as a full one does; or the log is cut while the checkpoint runs."""
        sync(self.store)
        checkpoint = self.store.begin_checkpoint()
        if cut_between:
            self.cut_somewhere(data)
            checkpoint.run()
            self.store.finish_checkpoint(checkpoint)
            return
        self.disk.fail_write_at(failing_write)
        try:
            checkpoint.run()
        except StorageError:
            self.store.abandon_checkpoint(checkpoint)
        else:
            self.store.finish_checkpoint(checkpoint)
        self.disk.no_more_faults()
        if decode_page(self.disk.read_bytes(CHECKPOINT_PATH) or b"") is None:
            self.ends("kill")  # only a broken disk refuses a write in place, and no broker goes on with one

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def cut_somewhere(self, data: st.DataObject) -> None:
        begin = self.store.commitlog.min_offset
        present = [offset for _, _, offset, _ in self.messages if offset >= begin]
        if present:
            offset = data.draw(st.sampled_from(present))
            self.store.truncate(offset)
            self.messages = [each for each in self.messages if each[2] < offset]

    @rule()
    def expire(self) -> None:
        if len(self.store.commitlog.segment_starts()) > 3:
            dispatch_all(self.store)
            sync(self.store)
            for removal in self.store.apply_retention(RetentionDecision(2, False)):
                removal()
            self.expired = True

    @rule(kind=st.sampled_from(["kill", "crash", "close"]))
    def ends(self, kind: str) -> None:
        if kind == "close":
            self.store.close()
        if kind == "crash":
            self.disk.crash()
        else:
            self.disk.kill()
        self.store = open_store(self.disk, self.clock, library=self.library)
        end = self.store.commitlog.end_offset
        self.messages = [each for each in self.messages if each[3] <= end]

    @invariant()
    def every_key_finds_its_messages(self) -> None:
        store = self.store
        assert store.index is not None
        seen = min(store.index.offset, store.dispatch_offset)
        expected: dict[tuple[str, str], list[int]] = {(topic, key): [] for topic in TOPICS for key in KEYS}
        for topic, keys, offset, end in self.messages:
            for key in keys:
                if store.commitlog.min_offset <= offset and end <= seen:
                    expected.setdefault((topic, key), []).append(offset)
        assert {each: find(store, *each, most=MOST) for each in expected} == expected

    def teardown(self) -> None:
        """However it came about: the files are those of an index that was made in one go."""
        if not hasattr(self, "store"):
            return
        dispatch_all(self.store)
        catch_up(self.store)
        self.every_key_finds_its_messages()
        if self.expired:
            return
        self.store.close()
        self.disk.kill()
        found = files(self.disk)
        self.disk.remove(DIRECTORY)
        self.disk.remove(PATH)
        again = make_store(self.disk, self.clock)
        again.load()
        dispatch_all(again)
        catch_up(again)
        again.close()
        self.disk.kill()
        assert found == files(self.disk)


def files(disk: MemoryDisk) -> list[bytes | None]:
    return [disk.read_bytes(f"{DIRECTORY}/{name}") for name in disk.names(DIRECTORY)]


class IndexMachineInC(IndexMachine):
    """With the library, whose files are those that Python makes."""

    @initialize(seed=st.integers(0, 1 << 16))
    def begin(self, seed: int) -> None:
        self.library = native_library()
        super().begin(seed)


TestIndexAgainstItsModel = IndexMachine.TestCase
TestIndexAgainstItsModel.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
TestIndexInCAgainstItsModel = IndexMachineInC.TestCase
TestIndexInCAgainstItsModel.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
