"""A broker's disk that stands still for a while: it takes writes, and ends no sync."""

from __future__ import annotations

from tests.sim.broker import SimBroker


def stand(node: SimBroker, length_ms: float) -> None:
    """From now on. The thread that syncs the log waits, and so does whoever else syncs: should that be the loop, it stands, too,
    and whatever it does next is done when the disk goes on."""
    disk, world = node.disk, node.world

    def block() -> None:
        if node.is_running and not node.is_paused:
            world.note(f"{node.name} waits for its disk, and does nothing else")
            node.pause()

    def go_on() -> None:
        if disk.stands:
            world.note(f"the disk of {node.name} goes on")
            disk.go_on()
            if node.disk is disk and node.is_running and node.is_paused:
                node.resume()

    disk.stand()
    disk.met_standing = block
    world.after(length_ms, go_on)
