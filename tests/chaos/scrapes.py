"""What a broker's metrics say, asked where it listens for that: on its own node's loopback."""

from __future__ import annotations

import re
from http.client import HTTPConnection
from typing import Final

from remoting.exporter import MetricsSettings
from tests.chaos.addresses import BROKER_PORT
from tests.chaos.namespaces import inside

_TIMEOUT_S: Final = 5.0
_SAMPLE: Final = re.compile(r"^(\w+)(?:\{[^}]*\})? ([-+.\deE]+)$", re.MULTILINE)


def scrape(namespace: str) -> dict[str, float]:
    """The samples of the broker in a namespace, by their names; those of one name added up."""
    settings = MetricsSettings()
    port = settings.scrape_port(BROKER_PORT)
    assert port is not None
    with inside(namespace):
        connection = HTTPConnection(settings.host, port, timeout=_TIMEOUT_S)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    connection.close()
    samples: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        samples[name] = samples.get(name, 0.0) + float(value)
    return samples
