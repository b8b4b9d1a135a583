"""TLS of a machine's own: real handshakes, and every state that a kill can leave."""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.identity.certificates import (
    DAY,
    NOW,
    YEAR,
    certificate,
    certificate_of,
    certificates,
    contents,
    fresh_server,
    greet,
    key_of,
    listener,
    modes,
    served,
)
from tracelake.errors import SetupError
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.tls import client_context, reload_if_changed, server_context


def test_a_client_that_trusts_the_authority_connects_by_name_and_by_both_loopback_addresses(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    assert files.notes == ()
    with listener(server_context(files)) as port:
        for name in ("localhost", "127.0.0.1", "::1"):
            assert greet(port, client_context(files.ca), name) == b"hello"


def test_only_tls_1_2_and_newer_are_spoken(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    assert server_context(files).minimum_version is ssl.TLSVersion.TLSv1_2
    assert client_context(files.ca).minimum_version is ssl.TLSVersion.TLSv1_2
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        context = client_context(files.ca)
        context.minimum_version = context.maximum_version = version
        with listener(server_context(files)) as port:
            assert greet(port, context, "localhost") == b"hello"


def test_another_authority_and_another_name_are_refused(folder: Path, tmp_path: Path) -> None:
    files = ensure_certificates(folder, NOW)
    other = ensure_certificates(tmp_path / "other", NOW)
    with listener(server_context(files)) as port:
        with pytest.raises(ssl.SSLCertVerificationError, match=r"unable to get|self-signed"):
            greet(port, client_context(other.ca), "localhost")
        with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
            greet(port, client_context(files.ca), "example.com")
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(port, ssl.create_default_context(), "localhost")


def test_certificates_say_what_they_are_for(folder: Path) -> None:
    files = ensure_certificates(folder, NOW, names=("localhost", "trace.example"), addresses=("10.0.0.7",))
    authority, server = certificate(files.ca), certificate(files.cert)

    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    may = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    assert (may.key_cert_sign, may.digital_signature) == (True, False)
    assert authority.not_valid_after_utc - NOW == 3650 * DAY

    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purposes = server.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.SERVER_AUTH]
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "trace.example"]
    assert [str(value) for value in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value.key_identifier
    issuer = server.extensions.get_extension_for_class(x509.AuthorityKeyIdentifier).value.key_identifier
    assert identifier == issuer
    assert server.not_valid_after_utc - NOW == 90 * DAY


def test_keys_are_for_their_owner_only_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0)
    try:
        files = ensure_certificates(folder, NOW)
    finally:
        os.umask(before)
    assert modes(files) == {".": 0o700, "ca-key.pem": 0o600, "server.pem": 0o600, "ca.pem": 0o644}


def test_modes_that_were_widened_are_restricted_again(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    for path in (folder, files.key, folder / "ca-key.pem"):
        path.chmod(0o755)
    ensure_certificates(folder, NOW)
    assert modes(files) == {".": 0o700, "ca-key.pem": 0o600, "server.pem": 0o600, "ca.pem": 0o644}


def test_a_second_start_changes_nothing(folder: Path) -> None:
    ensure_certificates(folder, NOW)
    before = contents(folder)
    assert ensure_certificates(folder, NOW + 59 * DAY).notes == ()
    assert contents(folder) == before


def test_renewed_at_29_days_left_by_the_same_authority_so_that_clients_go_on(folder: Path) -> None:
    files = ensure_certificates(folder, NOW - 61 * DAY)
    old, trusting = certificate(files.cert), client_context(files.ca)
    ensure_certificates(folder, NOW)
    assert certificate(files.cert) != old
    with listener(server_context(files)) as port:
        assert greet(port, trusting, "localhost") == b"hello"


def test_a_running_listener_uses_the_renewed_certificate(folder: Path) -> None:
    files = ensure_certificates(folder, NOW - 61 * DAY)
    running, trusting = server_context(files), client_context(files.ca)
    seen = reload_if_changed(running, files, None)
    assert reload_if_changed(running, files, seen) == seen
    with listener(running) as port:
        assert served(port, trusting) == certificate(files.cert)
        ensure_certificates(folder, NOW)
        assert served(port, trusting) != certificate(files.cert)
        again = reload_if_changed(running, files, seen)
        assert again != seen
        assert served(port, trusting) == certificate(files.cert)


def test_a_running_listener_keeps_its_certificate_when_the_file_is_bad(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = ensure_certificates(folder, NOW)
    running, trusting = server_context(files), client_context(files.ca)
    seen = reload_if_changed(running, files, None)
    good = files.cert.read_bytes()
    other = ensure_certificates(tmp_path / "other", NOW).cert.read_bytes()
    for bad in (b"", b"rubbish", good[: len(good) // 2], key_of(good) + certificate_of(other)):
        files.cert.write_bytes(bad)
        assert reload_if_changed(running, files, seen) == seen
        with listener(running) as port:
            assert greet(port, trusting, "localhost") == b"hello"
    assert "the old one stays" in caplog.text
    files.cert.unlink()
    assert reload_if_changed(running, files, seen) == seen


def test_new_names_make_a_new_certificate_and_keep_the_authority(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    trusting, authority = client_context(files.ca), files.ca.read_bytes()
    ensure_certificates(folder, NOW, names=("localhost", "trace.example"))
    assert files.ca.read_bytes() == authority
    with listener(server_context(files)) as port:
        assert greet(port, trusting, "trace.example") == b"hello"
    # and back again; the order of names does not count
    before = files.cert.read_bytes()
    ensure_certificates(folder, NOW, names=("trace.example", "localhost"))
    assert files.cert.read_bytes() == before


def test_an_authority_nearly_over_is_followed_by_another_and_both_are_trusted(folder: Path) -> None:
    files = ensure_certificates(folder, NOW - 10 * YEAR + 119 * DAY)
    first = certificate(files.ca)
    old_client, old_server = client_context(files.ca), server_context(fresh_server(folder, files))
    seen = reload_if_changed(old_client, files, None)

    renewed = ensure_certificates(folder, NOW)
    assert ["about to expire" in note for note in renewed.notes] == [True]
    assert [item == first for item in certificates(files.ca)] == [False, True]
    with listener(old_server) as port:  # a listener that has not restarted yet
        assert greet(port, client_context(files.ca), "localhost") == b"hello"
    with listener(server_context(files)) as port:  # a client that has not restarted yet
        with pytest.raises(ssl.SSLCertVerificationError):
            greet(port, old_client, "localhost")
        assert reload_if_changed(old_client, files, seen) != seen
        assert greet(port, old_client, "localhost") == b"hello"

    ensure_certificates(folder, NOW + 120 * DAY)
    assert first not in certificates(files.ca), "an authority that is over is dropped"


def test_an_authority_with_enough_time_left_stays(folder: Path) -> None:
    files = ensure_certificates(folder, NOW - 10 * YEAR + 121 * DAY)
    before = files.ca.read_bytes()
    assert ensure_certificates(folder, NOW).notes == ()
    assert files.ca.read_bytes() == before


def test_a_clock_before_the_authority_is_an_error_and_not_a_new_authority(folder: Path) -> None:
    ensure_certificates(folder, NOW)
    before = contents(folder)
    with pytest.raises(SetupError, match="the clock is") as refused:
        ensure_certificates(folder, datetime(1970, 1, 2, tzinfo=UTC))
    assert "set the clock" in str(refused.value.hint)
    assert contents(folder) == before


def test_a_server_certificate_from_the_future_is_made_again(folder: Path) -> None:
    ensure_certificates(folder, NOW)
    files = ensure_certificates(folder, NOW + 80 * DAY)
    ensure_certificates(folder, NOW)
    with listener(server_context(files)) as port:
        assert greet(port, client_context(files.ca), "localhost") == b"hello"
