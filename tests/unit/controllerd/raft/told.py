"""Stories of a Raft group without chance: who hears whom, and who crashes when, is written down. Checked is what `Chaos` checks.

Each is the shortest schedule that we know in which one broken rule does harm. With the rules as they are, all of them are about a
group that refuses, waits and loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from controllerd.raft import proposals
from controllerd.raft.log import LostLog
from controllerd.raft.membership import ChangeKind, ChangeRefused, MemberChange
from controllerd.raft.messages import Message, MessageKind
from tests.unit.controllerd.raft.chaos import SETTINGS, Chaos

Heard = Callable[[Message], bool]


def _everything(_: Message) -> bool:
    return True


class Told(Chaos):
    """Nodes n0, n1, ...; messages between others than those who `talk` are lost."""

    def __init__(self, size: int) -> None:
        super().__init__(0, size)
        self.healthy = True

    def talk(self, *among: str, heard: Heard = _everything) -> None:
        """Let these exchange messages until they have nothing to say; what is not `heard` is lost like what others say."""
        for _ in range(100):
            for name in among:
                self.work(name)
            messages = [each for each in self.network if {each.sender, each.to} <= set(among) and heard(each)]
            self.network = []
            if not messages:
                return
            for message in messages:
                self.nodes[message.to].core.step(message)
        raise AssertionError("they never stop talking")

    def work(self, name: str) -> None:
        """Write and send all that there is; what is sent waits in the network."""
        node = self.nodes[name]
        while node.outstanding is not None or node.core.has_ready():
            self._finish(node) if node.outstanding is not None else self._take(node)
        self._check()

    def lead(self, name: str, *voters: str, heard: Heard = _everything) -> None:
        """The others forget their leader, and this one campaigns among those who hear it."""
        for voter in voters:
            self.nodes[voter].core.forget_leader()
        self.nodes[name].core.campaign()
        self.talk(name, *voters, heard=heard)

    def crash(self, name: str) -> None:
        self._crash(self.nodes[name])

    def propose(self, name: str, data: bytes) -> None:
        proposals.propose(self.nodes[name].core.serving(), data)

    def change(self, name: str, kind: ChangeKind, node: str) -> None:
        """Ask for a change of the membership; a refusal is an answer."""
        try:
            proposals.propose_change(self.nodes[name].core.serving(), [MemberChange(kind, node)])
        except ChangeRefused:
            return

    def end(self) -> None:
        """All hear one another, and must agree."""
        self._check()
        self.heal()


def an_entry_of_an_earlier_term_is_counted() -> None:
    """The Raft paper's figure 8: an entry on a majority is replaced all the same, as a longer term is on another one."""
    group = Told(5)
    large = b"p" * SETTINGS.max_append_bytes  # so that it travels alone
    group.lead("n0", "n1", "n2", "n3", "n4")
    group.propose("n0", large)
    group.talk("n0", "n1", heard=lambda message: message.commit < 2)
    group.crash("n0")
    group.lead("n4", "n2", "n3", heard=lambda message: message.kind is not MessageKind.APPEND)
    group.crash("n4")

    def all_but_its_own_entry(message: Message) -> bool:
        fits = group.nodes[message.to].core.log.matches(message.index, message.log_term)
        return not (fits and message.entries and message.entries[-1].term == 3)

    for _ in range(2):  # the first time it learns the term
        group.lead("n0", "n2", "n3", heard=all_but_its_own_entry)
    group.crash("n0")
    for _ in range(2):
        group.lead("n4", "n2", "n3")
    group.end()


def a_vote_is_asked_for_again() -> None:
    """Two candidates of one term, and a voter that crashed in between."""
    group = Told(3)
    votes = frozenset({MessageKind.PRE_VOTE, MessageKind.PRE_VOTE_RESPONSE})
    for name in ("n0", "n1"):
        group.nodes[name].core.campaign()
    group.talk("n0", "n1", "n2", heard=lambda message: message.kind in votes)
    for name in ("n0", "n1"):
        # Both have won their pre-vote; their votes were lost, and are asked for once more.
        core = group.nodes[name].core
        group.network += [
            Message(MessageKind.VOTE, name, "n2", core.term, index=core.log.last_index, log_term=core.log.last_term)
        ]
    first, second = group.network
    group.network = []
    for message in (first, second):
        group.nodes["n2"].core.step(message)
        group.work("n2")
        answers = [each for each in group.network if each.to == message.sender]
        group.network = []
        for answer in answers:
            group.nodes[message.sender].core.step(answer)
        group.work(message.sender)
        group.network = []
        group.crash("n2")
    group.end()


def a_leader_that_was_deposed_is_asked() -> None:
    """It has not heard of its successor, which decided something."""
    group = Told(3)
    group.lead("n0", "n1", "n2")
    group.lead("n1", "n2")
    group.propose("n1", b"p")
    group.talk("n1", "n2")
    group._read(group.nodes["n0"])
    group.work("n0")
    group.end()


def an_answer_is_lost_with_what_it_promised() -> None:
    """A follower says that it holds an entry, and crashes; the leader counted on it and is gone, too."""
    group = Told(3)
    group.lead("n0", "n1", "n2")
    group.propose("n0", b"p")
    group.work("n0")
    message = next(each for each in group.network if each.to == "n1" and each.entries)
    group.network = []
    node = group.nodes["n1"]
    node.core.step(message)
    group._take(node)  # what may leave before the write leaves, and the write never happens
    answers = group.network
    group.crash("n1")
    group.network = []
    for answer in answers:
        group.nodes["n0"].core.step(answer)
    group.work("n0")
    group.network = []
    group.lead("n1", "n2")
    group.end()


def a_second_change_is_asked_for() -> None:
    """Before the first one is applied: those who know one of them and those who know both could decide apart."""
    group = Told(4)
    group.lead("n2", "n0", "n1", "n3")
    group.change("n2", ChangeKind.REMOVE, "n3")
    group.work("n2")
    sent, group.network = group.network, []
    group.change("n2", ChangeKind.REMOVE, "n0")
    for message in sent:
        if message.to in ("n0", "n1"):
            group.nodes[message.to].core.step(message)
    group.talk("n0", "n1", "n2", heard=lambda each: each.to == "n2" or (each.to == "n1" and each.commit < 3))
    group.propose("n2", b"p")
    group.nodes["n2"].core.tick()
    group.talk("n2", "n3")
    group.lead("n1", "n0")
    group.end()


def a_candidate_lacks_what_was_decided() -> None:
    """The one that holds it is asked for its vote."""
    group = Told(3)
    group.lead("n0", "n1", "n2")
    group.propose("n0", b"p")
    group.talk("n0", "n1")
    group.crash("n0")
    group.lead("n2", "n1")
    group.end()


def a_promise_rots() -> None:
    """One bit flips in the last record of the follower that made a decision, and the leader goes away. The follower is asked for
    its vote by the third node, which knows nothing of the decision."""
    group = Told(3)
    group.lead("n0", "n1", "n2")
    group.propose("n0", b"p")
    group.talk("n0", "n1", heard=lambda message: message.commit < 2)
    disk = group.nodes["n1"].disk
    path = max(name for name in disk.files if name.startswith("raft/log-"))
    disk.flip_bit(path, disk.files[path].seen.size - 8, 0)
    group.crash("n0")
    try:
        group.crash("n1")
    except LostLog:
        return  # it votes no more, so nobody leads before n0 is back
    group.lead("n2", "n1")
    group.end()
