"""Certificates for tests: one authority, and what it signs for 127.0.0.1. Made with the openssl program."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


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

    def sign(self, name: str) -> Certificate:
        """A certificate for 127.0.0.1 with a new key; another call with the same name replaces its files."""
        certificate, key = self._directory / f"{name}.pem", self._directory / f"{name}.key"
        request, extensions = self._directory / f"{name}.csr", self._directory / "extensions"
        extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
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
