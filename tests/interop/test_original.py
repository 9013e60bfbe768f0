"""The harness itself: the original alone, so that a failure beside ours is not the harness's."""

from __future__ import annotations

import pytest

from tests.interop.apache import CommandFailed, Session
from tests.support.cluster import eventually


def test_the_original_elects_its_own_broker(session: Session) -> None:
    name_server = session.name_server(with_controller=True)
    broker = session.broker("broker-a", name_server.address, controllers=name_server.controller)

    def listed() -> str | None:
        text = session.mqadmin("clusterList", "-n", name_server.address)
        return text if broker.address in text else None

    def sync_state_set() -> str | None:
        try:
            return session.mqadmin("getSyncStateSet", "-a", name_server.controller, "-b", "broker-a")
        except CommandFailed as failure:  # its controller stands still for seconds now and then
            if "RemotingTimeoutException" not in str(failure):
                raise
            return None

    assert "broker-a" in eventually("the broker is in the cluster list", listed, 60)
    assert f"#MasterAddr\t{broker.address}" in eventually("the original's controller answers", sync_state_set, 60)
    with pytest.raises(CommandFailed, match="electMaster"):
        session.mqadmin("electMaster", "-a", name_server.controller, "-b", "1", "-bn", "none", "-c", "DefaultCluster")
