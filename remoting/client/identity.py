"""What the console, its tasks and tools dial with: the cluster's secret file and certificates that the environment names."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

from remoting.access.secret_file import load_secrets
from remoting.errors import SettingsError
from remoting.transport.identity import Identity, component_identity
from remoting.transport.tls import client_context

CLUSTER_SECRET: Final = "LOGBOOM_CLUSTER_SECRET_FILE"
TLS_CA: Final = "LOGBOOM_TLS_CA"
TLS_CERTIFICATE: Final = "LOGBOOM_TLS_CERTIFICATE"
TLS_KEY: Final = "LOGBOOM_TLS_KEY"
TLS_CHECK_HOST: Final = "LOGBOOM_TLS_CHECK_HOST"


def identity_of_environment() -> Identity:
    """The identity that the environment gives this process. Raises SettingsError when a file it names is not fit for it.

    Who is dialled has to show a certificate for the address that was dialled, unless LOGBOOM_TLS_CHECK_HOST is 0.
    """
    paths = (os.environ.get(name, "") for name in (CLUSTER_SECRET, TLS_CA, TLS_CERTIFICATE, TLS_KEY))
    return _identity(*paths, check_host=_checks_host(os.environ.get(TLS_CHECK_HOST, "")))


def _checks_host(value: str) -> bool:
    if value not in ("", "0", "1"):
        raise SettingsError(f"{TLS_CHECK_HOST} is 0 or 1, not {value[:20]!r}; 0 takes any certificate of {TLS_CA}")
    return value != "0"


@lru_cache(maxsize=4)
def _identity(secret_path: str, ca_path: str, certificate_path: str, key_path: str, *, check_host: bool) -> Identity:
    secrets = load_secrets(Path(secret_path)) if secret_path else ()
    tls = client_context(ca_path, certificate_path, key_path, check_host=check_host) if ca_path else None
    return component_identity(secrets, tls)
