"""The first super user of clients: drawn for a cluster that asks who clients are and has no user yet, and shown once.

The file is for its owner, who may note what it says and remove it; users stay with the controllers. So a file that is missing can
mean a cluster without users, or one that has some: only the controllers know. What is drawn then is shown when it counts, and a
file that does not count, from this start or from one that came to nothing, is removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.access.signature import Credentials
from remoting.client.access_admin import AccessAdmin
from remoting.client.blocking import AdminClient
from remoting.client.identity import identity_of_environment
from remoting.errors import LogboomError, RequestError
from remoting.transport.identity import Identity
from webapp.appliance import secret_files
from webapp.appliance.layout import DataLayout
from webapp.appliance.terminal import Terminal

NAME: Final = "admin"
_LOOK_EVERY_S: Final = 0.2
_LOOKS_FOR_S: Final = 5.0


def draw(layout: DataLayout) -> bool:
    """Have a first user in case one is needed; whether it was drawn now."""
    is_new = not layout.first_user_file.exists()
    secret_files.read_or_create(layout.first_user_file, prefix=f"{NAME}:")
    return is_new


def read(path: Path) -> Credentials | None:
    """None when the owner removed the file."""
    try:
        name, _, secret = path.read_text().strip().partition(":")
    except FileNotFoundError:
        return None
    return Credentials(name, secret.encode())


async def tell(layout: DataLayout, controllers: Sequence[str], terminal: Terminal, *, is_new: bool) -> None:
    """Show what was drawn at this start; remove what does not count, as the controllers have other users or another secret."""
    path = layout.first_user_file
    counts = await asyncio.to_thread(_wait_for_users, controllers, path)
    if counts is False:
        path.unlink(missing_ok=True)
        if is_new:
            terminal.say(
                "Clients sign as      the users of before, who are kept; the console has them under Client users"
            )
        else:
            terminal.step(f"removed {path}: its key counts nowhere any more")
    elif is_new and counts is None:
        terminal.say(
            f"Clients sign as      the user in {path}, if the cluster had none before: no controller says so yet"
        )
    elif is_new and (user := read(path)) is not None:
        secret = user.secret.decode()
        terminal.say(f"Clients sign as      {user.access_key}, secret key {secret}  (shown this once; a super user)")


def _wait_for_users(controllers: Sequence[str], path: Path) -> bool | None:
    """As `_counts`, once that can be told, if it can be soon: the leader makes the first user when it sees that there is none."""
    deadline = time.monotonic() + _LOOKS_FOR_S
    while (counts := _counts(controllers, path)) is None and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)
    return counts


def _counts(controllers: Sequence[str], path: Path) -> bool | None:
    """Whether the user of the file may sign; None while that cannot be told."""
    user, own = read(path), identity_of_environment()
    if user is None:
        return False
    try:
        if not AccessAdmin(AdminClient(controllers, identity=own)).users():
            return None  # none is made yet
    except (LogboomError, OSError):
        return None
    try:
        AccessAdmin(AdminClient(controllers, identity=Identity(user, own.tls))).users()
    except RequestError as error:
        return False if error.code == codes.NO_PERMISSION else None
    except (LogboomError, OSError):
        return None
    return True
