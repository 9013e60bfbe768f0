"""What the console, its tasks and tools dial with: the cluster's secret file and certificates that the environment names."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from remoting.access.secret_file import load_secrets
from remoting.transport.identity import Identity, component_identity
from remoting.transport.tls import client_context

CLUSTER_SECRET: Final = "LOGBOOM_CLUSTER_SECRET_FILE"
TLS_CA: Final = "LOGBOOM_TLS_CA"
TLS_CERTIFICATE: Final = "LOGBOOM_TLS_CERTIFICATE"
TLS_KEY: Final = "LOGBOOM_TLS_KEY"


def identity_of_environment() -> Identity:
    """The identity that the environment gives this process. Raises SettingsError when a file it names is not fit for it."""
    return _identity(*(os.environ.get(name, "") for name in (CLUSTER_SECRET, TLS_CA, TLS_CERTIFICATE, TLS_KEY)))


@lru_cache(maxsize=4)
def _identity(secret_path: str, ca_path: str, certificate_path: str, key_path: str) -> Identity:
    secrets = load_secrets(Path(secret_path)) if secret_path else ()
    return component_identity(secrets, client_context(ca_path, certificate_path, key_path) if ca_path else None)
