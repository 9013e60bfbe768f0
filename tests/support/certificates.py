"""Certificates for tests: one authority, and what it signs for 127.0.0.1, by the openssl program; or the appliance's own."""

from __future__ import annotations

import datetime
import subprocess
from dataclasses import dataclass
from pathlib import Path

from webapp.appliance import certificates
from webapp.appliance.layout import DataLayout
from webapp.appliance.plan import tls_settings


def of_the_appliance(root: Path) -> tuple[tuple[str, ...], Path]:
    """What `up` sets for every daemon so that its ports answer TLS and plaintext, and the authority that it made for it."""
    layout = DataLayout(root)
    certificates.keep_fresh(layout, (), datetime.datetime.now(datetime.UTC))
    return tls_settings(layout), layout.tls_authority_file


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into a directory; `ca` is its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.ca, self._key = directory / "ca.pem", directory / "ca.key"
        _openssl(*_NEW_KEY, str(self._key), "-x509", "-days", "2", "-subj", "/CN=test authority", "-out", str(self.ca))

    def sign(self, name: str, names: str = "IP:127.0.0.1,DNS:localhost") -> Certificate:
        """A certificate for `names` with a new key; another call with the same name replaces its files."""
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        request, extensions = self._directory / f"{name}.csr", self._directory / "extensions"
        extensions.write_text(f"subjectAltName={names}\n")
        _openssl(*_NEW_KEY, str(key), "-subj", f"/CN={name}", "-out", str(request))
        signed = self._directory / f"{name}.new"
        _openssl(
            *("x509", "-req", "-in", str(request), "-CA", str(self.ca), "-CAkey", str(self._key), "-CAcreateserial"),
            *("-days", "2", "-extfile", str(extensions), "-out", str(signed)),
        )
        signed.replace(certificate)
        return Certificate(certificate, key)


_NEW_KEY = ("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout")


def _openssl(*arguments: str) -> None:
    done = subprocess.run(
        ["openssl", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout
