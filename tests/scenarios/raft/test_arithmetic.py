"""`quorum/*.txt` and `membership/*.txt`: who decides, and from which membership to which, one question at a time.

quorum:      committed voters=(a,b,c) [outgoing=(a)] a=5 b=7     the index that is decided (c holds nothing)
             vote voters=(a,b,c) [outgoing=(a)] a=yes b=no       how the ballot stands
membership:  start voters=(a,b) [learners=(c)]                   a membership to work on
             change add-voter:d remove:a [transition=joint] [at=...]   one change
             leave                                               out of a joint one
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controllerd.raft.codec import decode_configuration, encode_configuration
from controllerd.raft.membership import ChangeKind, MemberChange, Transition, change, leave_joint
from controllerd.raft.quorum import Configuration
from tests.scenarios.raft.interaction import configuration_text
from tests.scenarios.runner import Command, run_scenario

_HERE = Path(__file__).parent
_QUORUM = sorted((_HERE / "quorum").glob("*.txt"))
_MEMBERSHIP = sorted((_HERE / "membership").glob("*.txt"))


def _answer(command: Command) -> str:
    voters, outgoing = tuple(command.list("voters")), tuple(command.list("outgoing", ""))
    configuration = Configuration(tuple(sorted(voters)), tuple(sorted(outgoing)))
    facts = {key: value for key, value in command.options.items() if key not in ("voters", "outgoing")}
    if command.name == "committed":
        matched = {node: int(value) for node, value in facts.items()}
        swapped = Configuration(configuration.outgoing, configuration.voters) if outgoing else configuration
        assert swapped.committed_index(matched) == configuration.committed_index(matched), "neither half is special"
        return str(configuration.committed_index(matched))
    votes = {node: {"yes": True, "no": False}[value] for node, value in facts.items()}
    return configuration.vote_result(votes).value


class _Changer:
    """Changes one membership, step by step."""

    def __init__(self) -> None:
        self.configuration = Configuration()

    def execute(self, command: Command) -> str:
        if command.name == "start":
            learners = tuple(sorted(set(command.list("learners", ""))))
            self.configuration = replace(Configuration.of(command.list("voters")), learners=learners)
        elif command.name == "leave":
            self.configuration = leave_joint(self.configuration)
        else:
            changes = []
            for word in command.words:
                kind, node, *address = word.split(":", 2)
                changes.append(MemberChange(ChangeKind(kind), node, address[0] if address else ""))
            transition = Transition(command.option("transition", "auto"))
            self.configuration = change(self.configuration, changes, transition)
        assert decode_configuration(encode_configuration(self.configuration)) == self.configuration
        return configuration_text(self.configuration)


@pytest.mark.parametrize("path", _QUORUM, ids=lambda path: path.stem)
def test_quorum(path: Path) -> None:
    run_scenario(path, _answer)


@pytest.mark.parametrize("path", _MEMBERSHIP, ids=lambda path: path.stem)
def test_membership(path: Path) -> None:
    run_scenario(path, _Changer().execute)


def test_all_files_are_there() -> None:
    assert [path.stem for path in _QUORUM] == ["joint_commit", "joint_vote", "majority_commit", "majority_vote"]
    assert len(_MEMBERSHIP) >= 8
