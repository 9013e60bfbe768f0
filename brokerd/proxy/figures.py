"""What is measured of a broker's gRPC port, as metrics and the console's facts are made of it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brokerd.proxy.client_figures import ClientFigures


@dataclass(frozen=True, slots=True)
class GrpcFigures:
    """`calls`: by method and by the name of the code that they were answered with. `held_sends`
    wait for the owner of their message group. `clients`: what clients told of themselves."""

    calls: Mapping[str, Mapping[str, int]]
    connections: int
    telemetry_streams: int
    held_pulls: int
    held_sends: int
    clients: ClientFigures
