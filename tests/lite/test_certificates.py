"""TLS of a machine's own: real handshakes, and every state that a kill can leave."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import stat
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.support.waiting import SECONDS
from tracelake.errors import SetupError
from tracelake.lite.certificates import ensure_certificates
from tracelake.runtime.tls import TlsFiles, client_context, reload_if_changed, server_context

# Handshakes are checked against the real clock, so certificates of "the past" are made relative to it.
NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
YEAR = 365 * DAY
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "a home" / "tls"


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


def test_every_state_that_a_kill_can_leave_is_repaired(folder: Path) -> None:
    """Each write is a file beside, a rename, a next file: stop after each step, at first start and at both renewals."""
    moments = 0
    for begin in (None, NOW - 61 * DAY, NOW - 10 * YEAR + 119 * DAY):
        for step in range(100):
            shutil.rmtree(folder, ignore_errors=True)
            if begin is not None:
                ensure_certificates(folder, begin)
            finished = killed_after(step, folder)
            files = ensure_certificates(folder, NOW)
            assert works(files), f"begun {begin}, killed after step {step}"
            assert not list(folder.glob(".*.new")), "what a killed writer left is gone"
            if finished:
                break
            moments += 1
        else:
            pytest.fail("a run never finished")
    assert moments > 15, f"only {moments} moments were tried"


def test_a_kill_never_costs_a_good_authority(folder: Path) -> None:
    for step in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        files = ensure_certificates(folder, NOW - 61 * DAY)
        before = certificate(files.ca)
        finished = killed_after(step, folder)
        assert ensure_certificates(folder, NOW).notes == ()
        assert certificates(files.ca) == [before]
        if finished:
            return


@pytest.mark.parametrize(
    "damage", ["empty", "rubbish", "half", "no end", "another's key", "key only", "certificate only"]
)
@pytest.mark.parametrize("name", ["server.pem", "ca-key.pem"])
def test_a_damaged_file_is_replaced_with_a_note(folder: Path, tmp_path: Path, name: str, damage: str) -> None:
    files = ensure_certificates(folder, NOW)
    authority = files.ca.read_bytes()
    ensure_certificates(tmp_path / "other", NOW)
    good, other = (folder / name).read_bytes(), (tmp_path / "other" / name).read_bytes()
    bad = {
        "empty": b"",
        "rubbish": os.urandom(700),
        "half": good[: len(good) // 4],
        "no end": good.replace(b"-----END", b"-----DNE"),
        "another's key": key_of(other) + certificate_of(good),
        "key only": key_of(good),
        "certificate only": certificate_of(good),
    }[damage]
    (folder / name).write_bytes(bad)
    mended = ensure_certificates(folder, NOW)
    assert works(mended)
    if name == "ca-key.pem" and damage == "key only":
        # The certificate stands in ca.pem too: the authority is good, and stays.
        assert mended.notes == ()
        assert files.ca.read_bytes() == authority
    else:
        assert any(name in note for note in mended.notes)
    if name == "server.pem":
        assert files.ca.read_bytes() == authority


@pytest.mark.parametrize(
    "damage", [None, b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
)
def test_a_lost_public_file_is_written_again_from_the_same_authority(folder: Path, damage: bytes | None) -> None:
    files = ensure_certificates(folder, NOW)
    before, trusting = files.ca.read_bytes(), client_context(files.ca)
    if damage is None:
        files.ca.unlink()
    else:
        files.ca.write_bytes(damage)
    assert len(ensure_certificates(folder, NOW).notes) == (0 if damage is None else 1)
    assert files.ca.read_bytes() == before
    with listener(server_context(files)) as port:
        assert greet(port, trusting, "localhost") == b"hello"


def test_a_lost_authority_key_is_not_passed_over_in_silence(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    lost = certificate(files.ca)
    (folder / "ca-key.pem").unlink()
    mended = ensure_certificates(folder, NOW)
    assert ["new certificate authority" in note for note in mended.notes] == [True]
    assert certificates(files.ca)[1] == lost, "listeners that still serve the old certificate stay trusted"
    assert works(mended)


def test_a_server_pair_is_no_authority(folder: Path) -> None:
    files = ensure_certificates(folder, NOW)
    shutil.copy(files.key, folder / "ca-key.pem")
    assert works(ensure_certificates(folder, NOW))


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="cannot be stored") as refused:
        ensure_certificates(tmp_path / "file" / "tls", NOW)
    assert refused.value.hint
    ensure_certificates(tmp_path / "tls", NOW)
    (tmp_path / "tls" / "ca-key.pem").unlink()
    (tmp_path / "tls" / "ca-key.pem").mkdir()
    with pytest.raises(SetupError, match="cannot be stored"):
        ensure_certificates(tmp_path / "tls", NOW)


@pytest.mark.parametrize("names", [("bücher.example",), ("",)])
def test_an_impossible_name_is_refused_before_anything_is_written(folder: Path, names: tuple[str, ...]) -> None:
    with pytest.raises(SetupError, match="no certificate can be made"):
        ensure_certificates(folder, NOW, names=names, addresses=() if names[0] else ("not an address",))
    assert not folder.exists()


def test_many_processes_at_once_agree(folder: Path) -> None:
    begin = f"""
import sys
from datetime import datetime
from pathlib import Path
from tracelake.lite.certificates import ensure_certificates
print("ready", flush=True)
sys.stdin.readline()
files = ensure_certificates(Path({str(folder)!r}), datetime.fromisoformat({NOW.isoformat()!r}))
print(files.ca.read_text(), files.cert.read_text(), files.notes)
"""
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen([sys.executable, "-c", begin], stdin=pipe, stdout=pipe, text=True, cwd=ROOT) for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    answers = set()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in processes:
        output, _ = process.communicate(timeout=SECONDS)
        answers.add(output)
    assert len(answers) == 1
    assert answers.pop().endswith("()\n")
    assert works(ensure_certificates(folder, NOW))


@contextmanager
def listener(context: ssl.SSLContext) -> Iterator[int]:
    """A server on both loopback addresses that says hello to each client that passes the handshake."""
    listeners = []
    v4 = socket.create_server(("127.0.0.1", 0))
    port: int = v4.getsockname()[1]
    listeners.append(v4)
    if socket.has_dualstack_ipv6():
        listeners.append(socket.create_server(("::1", port), family=socket.AF_INET6))
    threads = [threading.Thread(target=_serve, args=(listener, context)) for listener in listeners]
    for thread in threads:
        thread.start()
    try:
        yield port
    finally:
        for listener in listeners:
            listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(SECONDS)
        for listener in listeners:
            listener.close()


def _serve(listener: socket.socket, context: ssl.SSLContext) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with connection:
            connection.settimeout(SECONDS)
            try:
                with context.wrap_socket(connection, server_side=True) as secured:
                    secured.sendall(b"hello")
                    secured.recv(1)
            except OSError:
                continue


def greet(port: int, context: ssl.SSLContext, name: str) -> bytes:
    address = "::1" if name == "::1" and socket.has_dualstack_ipv6() else "127.0.0.1"
    with (
        socket.create_connection((address, port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname=name) as secured,
    ):
        return secured.recv(10)


def served(port: int, context: ssl.SSLContext) -> x509.Certificate:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection,
        context.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        shown = secured.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown)


def works(files: TlsFiles) -> bool:
    with listener(server_context(files)) as port:
        return greet(port, client_context(files.ca), "localhost") == b"hello"


def fresh_server(folder: Path, files: TlsFiles) -> TlsFiles:
    """A listener that started when the old authority was still signing: its certificate is valid by the real clock."""
    ensure_certificates(folder, NOW - DAY - timedelta(hours=2))
    combined = folder.parent / "kept.pem"
    shutil.copy(files.cert, combined)
    return TlsFiles(files.ca, combined, combined)


def killed_after(step: int, folder: Path) -> bool:
    """Run it in a child that dies, without a goodbye, at its n-th change of the file system. True if it had fewer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests' threads: the child uses none of them
        child = os.fork()
    if child == 0:
        left = step

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal left
            writes = (
                event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))
            )
            if writes or event in {"os.mkdir", "os.rename", "os.remove", "os.chmod", "fcntl.flock"}:
                if left == 0:
                    os._exit(9)
                left -= 1

        sys.addaudithook(count)
        try:
            ensure_certificates(folder, NOW)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def certificate(path: Path) -> x509.Certificate:
    return certificates(path)[0]


def certificates(path: Path) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(path.read_bytes())


def key_of(content: bytes) -> bytes:
    return content[: content.index(b"-----BEGIN CERTIFICATE")]


def certificate_of(content: bytes) -> bytes:
    return content[content.index(b"-----BEGIN CERTIFICATE") :]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def modes(files: TlsFiles) -> dict[str, int]:
    folder = files.ca.parent
    found = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.pem")}
    return {".": stat.S_IMODE(folder.stat().st_mode), **found}
