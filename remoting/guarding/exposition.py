"""What access control shows to metrics, the same on brokers and controllers."""

from __future__ import annotations

from remoting.exposition import Family
from remoting.guarding.guard import Guard


def access_families(guard: Guard | None) -> list[Family]:
    """Nothing without a guard."""
    if guard is None:
        return []
    return [
        Family("logboom_access_authentication", "gauge", "1 when only signed requests are taken").add(int(guard.is_on)),
        Family("logboom_access_authorization", "gauge", "1 when permissions are checked").add(
            int(guard.settings.authorization)
        ),
        Family("logboom_access_version", "gauge", "version of users and permissions here").add(guard.state.version),
        Family("logboom_access_refused_total", "counter", "requests refused for who sent them").add(guard.refused),
    ]
