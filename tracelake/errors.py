"""All errors of Trace, as one tree. Leaves are raised, branches are caught.

    TraceError
    +-- BadInput                what was given cannot be right; trying again unchanged never helps
    |   +-- SettingsError       a setting is unknown, impossible or missing
    |   +-- InvalidDag          a DAG's YAML was refused; carries every problem found
    |   +-- InvalidRequest      a body, header or parameter was refused; `where` is its JSON pointer
    |   |   +-- HungUp          the caller no longer waits for the answer
    |   +-- BodyTooLarge        a webhook's body is larger than its source takes
    |   +-- InvalidAbi          a contract's ABI that cannot be read
    |   +-- InvalidBundle       a zip of user code was refused; `where` is the entry at fault
    |   +-- InvalidSql          a query was refused before it ran; `where` is the line and column in it
    |   +-- InvalidBackup       a folder is no backup, or one that is unfinished, damaged or newer than this code
    +-- Refused                 well formed, but not allowed to happen
    |   +-- Unauthenticated     no identity, or one that does not hold
    |   |   +-- InvitationExpired  the user was invited, and did not call in time
    |   +-- Forbidden           a good identity without the right
    |   +-- NotFound            no such thing for this caller
    |   +-- Conflict            it contradicts what is already so
    |   |   +-- ObjectExists    a name in the object store is taken
    |   |   +-- Incompatible    it does not fit what a generation is, and never will: a retry does not help
    |   +-- LeaseLost           the attempt is no longer the current one
    |   +-- DestinationRefused  nothing may be sent to this address
    |   +-- SnapshotTooOld      what a pinned commit would read is no longer kept
    |   +-- LimitReached        a query needs more than it may have
    |   |   +-- ResultTooLarge  it has more rows than an answer may have
    |   +-- QueryFailed         it ran, and its rows could not be made
    +-- Unavailable             may work later; retryable
    |   +-- DatabaseUnavailable
    |   |   +-- NoConnection    every connection of a pool is in use, and none came free in time
    |   |   +-- TransactionConflict  Postgres ended a transaction for the sake of another: nothing was stored
    |   +-- ServiceUnavailable     another Trace process does not answer
    |   +-- ObjectsUnavailable  the object store does not answer
    |   +-- QueueUnavailable    SQS does not answer, refuses us, or has no such queue
    |   +-- SigningUnavailable  no key signs here, or KMS does not answer or refuses us
    |   +-- SecretsUnavailable  Secrets Manager does not answer or refuses us, or a secret's key is missing
    |   +-- CredentialsUnavailable  the store's STS does not answer, or refuses us
    |   +-- SnapshotMoved       rows changed under a read that could not hold them still
    |   +-- DiskFull            a disk has no room: nothing was stored, and the call may be repeated
    |   +-- TooManyConnections  a listener has as many connections open as it may
    |   +-- Busy                as many are served as can be, and enough wait
    |   +-- QueryTimeout        a query took longer than it may, and was ended: less load may be all it takes
    |   +-- SparkLost           the Spark under a query ended, and is started again
    |   +-- EngineLost          the same for the engine of an organisation
    +-- WorkFailed              an operator could not do its work; `retryable` is given by the operator
    +-- ProviderError           a chain's node is at fault; `where` names it, never its address
    |   +-- ProviderUnavailable no answer, or none that can be read; retryable
    |   +-- ProviderThrottled   asked more than it allows; retryable
    |   +-- ProviderLagged      it does not have the block, yet or any more; retryable
    |   +-- ProviderLied        what it answered cannot be true; retryable: another may be honest
    |   +-- ChainMoved          answers that belong to different forks; retryable: it settles
    |   +-- ProviderRefused     it will refuse the same request again
    |   |   +-- MethodUnknown   it does not have the method at all
    |   |   +-- SizeRefused     it asks for less at once, and less than one block there is not
    |   +-- ValueTooLarge       a number that may be true, and that its column cannot hold
    |   +-- WrongChain          it serves another chain than its pool is for
    +-- SetupError              this machine cannot run Trace as it is
        +-- HomeInUse           another `trace up` holds the home folder
        +-- JavaMissing         no Java 17+ anywhere
        +-- PostgresFailed      the embedded server did not start
        +-- SchemaMismatch      a database and this code's migrations disagree

An error has what is wrong (`message`), where (`where`: a YAML position, a JSON pointer, a setting, a path), what to do
(`hint`) and whether a retry may help (`retryable`). `code` is stable: callers may branch on it. `platform` of a class:
whether a retryable failure is the platform's own; such an end of an attempt does not count against `max_attempts`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar


class TraceError(Exception):
    """The root: catch it to show an error to a person, or to return it from an API."""

    code: ClassVar[str] = "trace_error"
    retryable: bool = False
    platform: ClassVar[bool] = False
    """Whether it is the platform's fault, where it is retryable."""

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, where, hint

    def as_dict(self) -> dict[str, Any]:
        """The shape that `--json` prints and every API returns."""
        return {name: getattr(self, name) for name in ("code", "message", "where", "hint", "retryable")}


class _PlatformFault:
    """Of the platform: a retry may help."""

    retryable = platform = True


class BadInput(TraceError):
    code = "bad_input"


class SettingsError(BadInput):
    code = "bad_setting"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong in a DAG's YAML. Line and column count from 1; `field` is a path such as `jobs[2].inputs`."""

    line: int
    column: int
    field: str
    reason: str
    suggestion: str | None
    code: str

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}{f', {self.field}' if self.field else ''}: {self.reason}"


class InvalidDag(BadInput):
    code = "invalid_dag"

    def __init__(self, problems: Sequence[Problem], warnings: Sequence[Problem] = ()) -> None:
        first, count = problems[0], len(problems)
        summary = str(first) if count == 1 else f"{count} problems, the first at {first}"
        super().__init__(summary, where=f"line {first.line}, column {first.column}", hint=first.suggestion)
        self.problems, self.warnings = tuple(problems), tuple(warnings)

    def as_dict(self) -> dict[str, Any]:
        problems, warnings = (list(map(asdict, found)) for found in (self.problems, self.warnings))
        return super().as_dict() | {"problems": problems, "warnings": warnings}


class InvalidRequest(BadInput):
    code = "invalid_request"


class BodyTooLarge(BadInput):
    code = "body_too_large"


class HungUp(InvalidRequest):
    """The caller no longer waits for the answer, so nothing receives this."""


class InvalidAbi(BadInput):
    code = "invalid_abi"


class InvalidBundle(BadInput):
    """`reason` is stable, and finer than `code`: which rule the zip breaks."""

    code = "invalid_bundle"

    def __init__(
        self, message: str, *, reason: str = "broken", where: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, where=where, hint=hint)
        self.reason = reason

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | {"reason": self.reason}


class InvalidSql(BadInput):
    """Line and column count from 1, in the query's text."""

    code = "invalid_sql"

    def __init__(
        self,
        message: str,
        *,
        line: int | None = None,
        column: int | None = None,
        hint: str | None = None,
        reason: str = "refused_sql",
    ) -> None:
        super().__init__(message, where=None if line is None else f"line {line}, column {column}", hint=hint)
        self.line, self.column, self.reason = line, column, reason


class InvalidBackup(BadInput):
    code = "invalid_backup"


class Refused(TraceError):
    code = "refused"


class Unauthenticated(Refused):
    code = "unauthenticated"


class InvitationExpired(Unauthenticated):
    code = "invitation_expired"


class Forbidden(Refused):
    code = "forbidden"


class NotFound(Refused):
    code = "not_found"


class Conflict(Refused):
    code = "conflict"


class ObjectExists(Conflict):
    code = "object_exists"


class Incompatible(Conflict):
    code = "incompatible"


class LeaseLost(Refused):
    code = "lease_lost"


class DestinationRefused(Refused):
    code = "destination_refused"


class SnapshotTooOld(Refused):
    code = "snapshot_too_old"


class LimitReached(Refused):
    code = "limit_reached"


class ResultTooLarge(LimitReached):
    code = "result_too_large"


class QueryFailed(Refused):
    code = "query_failed"


class Unavailable(_PlatformFault, TraceError):
    """`retry_after`: after how many seconds a caller may try again; sent as the header of that name."""

    code = "unavailable"
    retry_after: int = 1


class Busy(Unavailable):
    code = "busy"


class QueryTimeout(Unavailable):
    code = "query_timeout"


class SparkLost(Unavailable):
    code = "spark_lost"


class EngineLost(Unavailable):
    code = "engine_lost"


class DiskFull(Unavailable):
    code = "disk_full"
    retry_after = 10

    @classmethod
    def of(cls, disk: str, where: str | None) -> DiskFull:
        hint = "free space there; then the call can be repeated"
        return cls(f"the disk of {disk} is full: nothing was stored", where=where, hint=hint)


class TooManyConnections(Unavailable):
    code = "too_many_connections"


class DatabaseUnavailable(Unavailable):
    code = "database_unavailable"


class NoConnection(DatabaseUnavailable):
    code = "no_connection"


class TransactionConflict(DatabaseUnavailable):
    code = "transaction_conflict"

    @classmethod
    def of(cls, reason: str) -> TransactionConflict:
        return cls(f"Postgres rolled the transaction back ({reason}): nothing was stored", hint="repeat the call")


class ServiceUnavailable(Unavailable):
    code = "service_unavailable"


class ObjectsUnavailable(Unavailable):
    code = "objects_unavailable"


class QueueUnavailable(Unavailable):
    code = "queue_unavailable"


class SigningUnavailable(Unavailable):
    code = "signing_unavailable"


class SecretsUnavailable(Unavailable):
    code = "secrets_unavailable"


class CredentialsUnavailable(Unavailable):
    code = "credentials_unavailable"


class WorkFailed(TraceError):
    code = "work_failed"

    def __init__(self, message: str, *, retryable: bool = False, **more: str | None) -> None:
        super().__init__(message, **more)
        self.retryable = retryable


class SnapshotMoved(Unavailable):
    code = "snapshot_moved"


class ProviderError(TraceError):
    code = "provider"


class ProviderUnavailable(_PlatformFault, ProviderError):
    code = "provider_unavailable"


class ProviderThrottled(_PlatformFault, ProviderError):
    """`retry_after`: how many seconds the node asked for, if it did."""

    code = "provider_throttled"

    def __init__(self, message: str, *, where: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message, where=where, hint="lower the pool's requests_per_second, or add an endpoint")
        self.retry_after = retry_after


class ProviderLagged(_PlatformFault, ProviderError):
    code = "provider_lagged"


class ProviderLied(_PlatformFault, ProviderError):
    code = "provider_lied"


class ChainMoved(_PlatformFault, ProviderError):
    code = "chain_moved"


class ProviderRefused(ProviderError):
    code = "provider_refused"


class MethodUnknown(ProviderRefused):
    code = "method_unknown"


class SizeRefused(ProviderRefused):
    code = "size_refused"


class ValueTooLarge(ProviderError):
    code = "value_too_large"


class WrongChain(ProviderError):
    code = "wrong_chain"


class SetupError(TraceError):
    code = "setup"


class HomeInUse(SetupError):
    code = "home_in_use"


class JavaMissing(SetupError):
    code = "java_missing"


class PostgresFailed(SetupError):
    code = "postgres_failed"


class SchemaMismatch(SetupError):
    code = "schema_mismatch"
