"""Making a chosen replica the master of its group."""

from __future__ import annotations

from typing import Any

from remoting.facts.snapshot import Replica
from remoting.names import MAX_TOPIC_LENGTH
from webapp import snapshot
from webapp.accounts.permissions import Actor
from webapp.errors import Conflict, NotFound, Unavailable
from webapp.operations.kinds import Kind, Parameters
from webapp.rules import Rules


def _validate(actor: Actor, parameters: Parameters) -> Parameters:
    rules = Rules(parameters)
    cleaned: dict[str, Any] = {
        "cluster": rules.text("cluster", least=1, most=MAX_TOPIC_LENGTH),
        "group": rules.text("group", least=1, most=MAX_TOPIC_LENGTH),
        "broker_id": rules.integer("broker_id", least=1, most=2**31 - 1),
    }
    rules.finish()
    present = snapshot.current()
    if present.data is None:
        raise Unavailable(f"Whether the replica is eligible is not known now: {present.problem}")
    group = present.group(cleaned["cluster"], cleaned["group"])
    replica = group.replica(cleaned["broker_id"])
    if replica is None:
        raise NotFound(f"The group {cleaned['group']} has no replica {cleaned['broker_id']}.", code="replica-not-found")
    if group.master_id == cleaned["broker_id"]:
        raise Conflict(f"R{replica.label[1:]} is the master already.", code="already-master")
    eligible, reason = eligibility(replica)
    if not eligible:
        raise Conflict(f"R{replica.label[1:]} is not eligible: {reason}.", code="not-eligible")
    return cleaned


def eligibility(replica: Replica) -> tuple[bool, str]:
    """Whether a replica can be made the master, and why or why not: what is dead now cannot, whatever was said of it before."""
    if replica.alive is False and replica.eligible:
        return False, "it is not alive: start it again and let it catch up"
    return replica.eligible, replica.eligibility_reason


def _plan(parameters: Parameters) -> list[dict[str, str]]:
    group = snapshot.current().group(parameters["cluster"], parameters["group"])
    chosen = parameters["broker_id"]
    epoch = "one higher" if group.master_epoch is None else group.master_epoch + 1
    steps = [{"node": f"replica {chosen}", "change": f"becomes master with epoch {epoch}"}]
    for replica in group.replicas:
        if replica.id != chosen:
            change = "hands over and follows" if replica.id == group.master_id else "follows the new master"
            steps.append({"node": f"replica {replica.id}", "change": change})
    return steps


ELECT = Kind(
    "election.elect", "Elect master", "elections.write", _validate, _plan, target=("cluster", "group", "broker_id")
)
