"""TLS contexts of listeners and clients, made from files and reloaded while they are in use."""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TlsFiles:
    """The files that a listener needs. `cert` and `key` are one file."""

    ca: Path
    cert: Path
    key: Path
    notes: tuple[str, ...] = ()
    """What had to be repaired, for the log."""


Seen = tuple[tuple[int, int, int], ...]
"""Which versions of the files a context holds."""


def server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(files.cert, files.key)
    return context


def client_context(ca: Path | None) -> ssl.SSLContext:
    """Trusts this authority and no other (without one: those of the machine); checks the name."""
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on: the same on all we support
    return context


def public_context(ca: Path | None) -> ssl.SSLContext:
    """Trusts the authorities of the machine, and this one: for addresses that may be of AWS or of ours."""
    context = client_context(None)
    if ca is not None:
        context.load_verify_locations(cafile=str(ca))
    return context


def reload_if_changed(context: ssl.SSLContext, files: TlsFiles, seen: Seen | None) -> Seen | None:
    """Reloads a context whose files have changed; open connections stay. Pass the result to the next call."""
    try:
        there = tuple(_version(path) for path in (files.ca, files.cert))
        if there == seen:
            return seen
        if context.protocol == ssl.PROTOCOL_TLS_SERVER:
            server_context(files)  # a trial: a pair that does not fit would spoil the running context
            context.load_cert_chain(files.cert, files.key)
        else:
            context.load_verify_locations(cafile=str(files.ca))
    except OSError as error:  # ssl.SSLError is one
        log.warning("the renewed certificate cannot be used; the old one stays: %s", error)
        return seen
    return there


def _version(path: Path) -> tuple[int, int, int]:
    facts = path.stat()
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
