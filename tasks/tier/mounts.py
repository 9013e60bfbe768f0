"""What the tier of a broker group says of mounts: whether there is anything to serve, and who serves it."""

from __future__ import annotations

from typing import Final

from remoting.tier.leases import Lease, decode_lease
from remoting.tier.names import LEASES, MANIFEST, lease_name, lease_token
from tasks.tier.objects import NotThere, Objects, TierError

_MANIFEST: Final = MANIFEST.rstrip("/")
_LOOKS: Final = 3  # old leases are removed while this looks


def has_manifest(objects: Objects) -> bool:
    """Whether the group ever uploaded anything. Raises TierError."""
    return next(objects.list(_MANIFEST), None) is not None


def latest_lease(objects: Objects) -> Lease | None:
    """The one that counted a moment ago; None when there never was one. Raises TierError."""
    for _ in range(_LOOKS):
        listed = [lease_token(each.name) for each in objects.list(LEASES.rstrip("/"))]
        token = max((each for each in listed if each is not None), default=0)
        if not token:
            return None
        name = lease_name(token)
        try:
            return decode_lease(objects.get_all(name), token, name)
        except NotThere:
            continue
        except ValueError as error:
            raise TierError(str(error)) from error
    raise TierError("the leases in the tier change while they are read: ask again")
