"""Certificates that openssl makes: an authority, and what it signs for a server."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from support.installed import needed_program

__all__ = ["Certificate", "make_certificate"]


@dataclass(frozen=True)
class Certificate:
    """A server's certificate, its key, and who signed it: files."""

    authority: Path
    certificate: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        """What a redis-server is started with in place of its port; ``{port}`` is to be filled in."""
        return (
            "--port", "0", "--tls-port", "{port}", "--tls-cert-file", str(self.certificate), "--tls-key-file",
            str(self.key), "--tls-ca-cert-file", str(self.authority), "--tls-auth-clients", "no",
        )  # fmt: skip


def make_certificate(folder: Path, name: str = "IP:127.0.0.1") -> Certificate:
    """Make an authority and let it sign a certificate for ``name``, as openssl spells a subjectAltName."""
    openssl = needed_program("openssl", "certificates are made with it")
    folder.mkdir(parents=True)
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = Certificate(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    by = ["-CA", str(made.authority), "-CAkey", str(folder / "ca.key")]
    for options in (
        ["-x509", *ec, "-days", "2", "-subj", "/CN=authority of the tests", "-keyout", str(folder / "ca.key"),
         "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-out", str(made.authority)],
        ["-x509", *ec, "-days", "2", "-subj", "/CN=redis", "-addext", f"subjectAltName={name}", *by,
         "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", str(made.key), "-out", str(made.certificate)],
    ):  # fmt: skip
        done = subprocess.run([openssl, "req", *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    return made
