"""The console's settings with a fake cluster behind the gateway, so that a browser can look at messages without brokers."""

from __future__ import annotations

from webapp.settings import *  # noqa: F403

CLUSTER_CLIENT = "tests.browser.cluster.SeededCluster"
ACCESS_CLIENT = "tests.browser.cluster.SeededAccess"
