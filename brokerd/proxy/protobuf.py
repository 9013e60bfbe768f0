"""The protobuf modules of RocketMQ's gRPC protocol, as the official Python client ships them.

Importing them the usual way runs the whole client: it loads OpenTelemetry and creates a log directory under the home directory.
A daemon wants neither. So the two packages above the modules are put into `sys.modules` as placeholders that know only where
their files are, the modules are imported, and the placeholders are removed again: a later ordinary import of the client in the
same process works, because the descriptor pool accepts the identical registration.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from remoting.errors import SettingsError

_PACKAGES = ("rocketmq", "rocketmq.grpc_protocol")
_MODULES = ("definition_pb2", "service_pb2")


def _load() -> tuple[ModuleType, ...]:
    if "rocketmq" in sys.modules:
        # the client is in use in this process already: its own import is done
        return tuple(importlib.import_module(f"{_PACKAGES[-1]}.{name}") for name in _MODULES)
    spec = importlib.util.find_spec("rocketmq")
    if spec is None or not spec.submodule_search_locations:
        raise SettingsError("the Python package rocketmq-python-client is missing; install the requirements")
    directory = Path(next(iter(spec.submodule_search_locations)))
    try:
        for package in _PACKAGES:
            placeholder = ModuleType(package)
            placeholder.__path__ = [str(directory.joinpath(*package.split(".")[1:]))]
            sys.modules[package] = placeholder
        return tuple(importlib.import_module(f"{_PACKAGES[-1]}.{name}") for name in _MODULES)
    finally:
        for name in [*_PACKAGES, *(f"{_PACKAGES[-1]}.{name}" for name in _MODULES)]:
            sys.modules.pop(name, None)


definition: Any
service: Any
definition, service = _load()


def milliseconds(time: Any) -> int:
    """A timestamp or a duration, rounded down."""
    whole: int = time.seconds * 1000 + time.nanos // 1_000_000
    return whole
