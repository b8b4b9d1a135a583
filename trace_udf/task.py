"""The task of a function: its scope and inputs, and all calls that it can make."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import sys
import time
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Type, Union

from trace_udf.connections import TIMEOUT_SECONDS, Asked, call
from trace_udf.errors import Ended, LeaseLost, Refused, refusal
from trace_udf.objects import put_at_s3, put_object
from trace_udf.rows import Key, batches

CAPABILITY = "X-Trace-Task-Capability"
BUFFERED = "postgres_table:buffered."
ALERT_EVENTS = "alert_events"
ALERT_KEY = ("alert_definition_id", "dedupe_key")
ALERTS_AT_ONCE = 1_000
KEYS_KEPT_SECONDS = 300.0
QUERY_SECONDS = 600.0
"""The timeout of a query; the service ends it long before."""
SAID_EVERY_SECONDS = 1.0
"""The minimum interval of progress reports; the last one is sent with the completion."""

Json = Dict[str, Any]
Output = Union[str, int, None]


class Alert(NamedTuple):
    """An alert's definition at the start of the task."""

    id: str
    name: str
    severity: str
    params: Mapping[str, Any]


class Task:
    """Created from the event of an invocation. Its methods are thread-safe."""

    def __init__(self, event: Mapping[str, Any], context: Any = None) -> None:
        self.event = event
        self.context = context
        self.id: str = event["task_id"]
        self.attempt: int = event["attempt"]
        self.job: Mapping[str, str] = event["job"]
        """`dag_name` and `name`."""
        self.config: Mapping[str, Any] = event.get("config") or {}
        self.inputs: List[Mapping[str, Any]] = event.get("inputs") or []
        self.outputs: List[Mapping[str, Any]] = event.get("outputs") or []
        self.scope: Mapping[str, Any] = event.get("scope") or {}
        """The scope: `cursor`, `partition_key`, or `start` and `end`; all None: everything."""
        self.fired: Optional[Mapping[str, Any]] = event.get("fired")
        """Of a source: what fired it: `kind`, and the `slot` of a schedule or the `body` of a webhook."""
        self.state: Any = event.get("state")
        """The job's state. A new value is saved with the completion."""
        self.alerts: List[Alert] = [_alert(item) for item in event.get("alerts") or []]
        self.log = logger()
        self.ended: Optional[Type[Ended]] = None
        self.heartbeat_seconds: float = event.get("heartbeat_seconds") or 30
        self.completes: str = event.get("completes", "function")
        self._token: str = event["capability_token"]
        self._events: List[Json] = []
        self._progress: Optional[Json] = None
        self._waiting: Dict[str, List[Json]] = {}
        self._keys: Optional[Json] = None
        self._keys_until = 0.0
        self._heard = -SAID_EVERY_SECONDS

    def query(
        self,
        sql: str,
        *,
        as_of: Optional[Mapping[str, Any]] = None,
        limit: Optional[int] = None,
        timeout_seconds: Optional[float] = None,
    ) -> List[Json]:
        """Runs a SELECT over the inputs, by their names in the DAG; returns rows as dicts.

        Bytes are 0x text, decimals are text, times are ISO 8601. More rows than the service returns at once are an
        error, unless `limit` is given.
        """
        asked: Json = {"sql": sql, "as_of": as_of, "limit": limit, "timeout_seconds": timeout_seconds}
        asked = {name: value for name, value in asked.items() if value is not None}
        seconds = (timeout_seconds or QUERY_SECONDS) + 30
        answer = self._post(_url("TRACE_QUERY_URL"), "/v1/task/query", asked, seconds)
        if answer["truncated"] and limit is None:
            error = {"code": "result_too_large", "message": f"there are more than {len(answer['rows'])} rows"}
            raise Refused("POST /v1/task/query", 422, {**error, "hint": "narrow the query, or give a limit"})
        names = [column["name"] for column in answer["columns"]]
        return [dict(zip(names, row)) for row in answer["rows"]]

    def publish(self, rows: Iterable[Mapping[str, Any]], *, dataset: Output = None, key: Key = None) -> int:
        """Adds rows to a buffered dataset, by its name or the only one; returns how many were sent.

        `key` names the column or columns that identify a row: of two rows with the same key the last counts, and equal
        rows in any order are the same batch, so that sending them again adds nothing. They count at once, also if the
        task fails later; a row that a retry sends again replaces itself, by the dataset's unique key.
        """
        output = self._output(dataset, buffered=True)
        sent = 0
        for batch in batches(rows, key):
            self._publish(output, batch.body, batch.rows)
            sent += batch.rows
        return sent

    def emit(
        self,
        output: Output = None,
        *,
        cursor: Optional[int] = None,
        partition_key: Optional[str] = None,
        start: Optional[int] = None,
        end: Optional[int] = None,
        now: bool = False,
    ) -> None:
        """Emits an event for the readers of an output: for a cursor, a partition, a range, or all of it.

        It is sent with the completion; with `now`, at once.
        """
        target = self._output(output, buffered=False)
        scope = {"cursor": cursor, "partition_key": partition_key, "start": start, "end": end}
        event = {
            "dataset_uuid": target["dataset_uuid"],
            "dataset_version": target["dataset_version"],
            **{name: value for name, value in scope.items() if value is not None},
        }
        if now:
            self._post(_url("TRACE_TASK_URL"), "/v1/task/events", {"events": [event]})
        else:
            self._events.append(event)

    def progress(self, done: Optional[int] = None, total: Optional[int] = None, message: Optional[str] = None) -> None:
        """Reports progress. Sent within a second where the function renews its own lease."""
        progress = {"done": done, "total": total, "message": message}
        self._progress = {name: value for name, value in progress.items() if value is not None}
        if self.completes == "function" and time.monotonic() >= self._heard + SAID_EVERY_SECONDS:
            self.beat()

    def credentials(self) -> Json:
        """Credentials for the task's own folders in the object store, or the mounted folders."""
        return self._post(_url("TRACE_TASK_URL"), "/v1/task/credentials", {})

    def alert(
        self,
        definition: Union[Alert, str],
        *,
        dedupe_key: str,
        event_time: Any,
        chain_id: Optional[int] = None,
        block_number: Optional[int] = None,
        block_hash: Any = None,
        tx_hash: Any = None,
        severity: Optional[str] = None,
        payload: Any = None,
        dataset: Output = None,
    ) -> None:
        """Raises an alert, once per definition and `dedupe_key`. Sent in batches.

        It goes to the job's buffered dataset; if there are several, to `alert_events` or to `dataset`.
        """
        about = self._definition(definition)
        output = self._alert_output(dataset)
        row = {
            "alert_definition_id": about.id,
            "dedupe_key": dedupe_key,
            "event_time": event_time,
            "chain_id": chain_id,
            "block_number": block_number,
            "block_hash": block_hash,
            "tx_hash": tx_hash,
            "severity": severity or about.severity,
            "payload": payload,
        }
        waiting = self._waiting.setdefault(output["dataset_uuid"], [])
        waiting.append({name: value for name, value in row.items() if value is not None})
        if len(waiting) >= ALERTS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Sends waiting alerts. Called when a function returns, not when it fails."""
        waiting, self._waiting = self._waiting, {}
        for dataset, rows in waiting.items():
            self.publish(rows, dataset=dataset, key=ALERT_KEY)

    def beat(self) -> Json:
        """Sends a heartbeat: renews the lease and reports progress."""
        message = {"progress": self._progress} if self._progress else {}
        self._heard = time.monotonic()
        answer = self._post(_url("TRACE_TASK_URL"), "/v1/task/heartbeat", message)
        if answer.get("capability_token"):
            self._token = answer["capability_token"]
        return answer

    def outcome(
        self, status: str, error: Optional[str] = None, *, retryable: bool = True, code: Optional[str] = None
    ) -> Json:
        """The completion message. `code`: of the refusal that ended it, if any."""
        if status != "Completed":
            ended: Json = {"status": status, "error_message": error, "retryable": retryable}
            return {**ended, "error_code": code} if code else ended
        message: Json = {"status": status}
        if self._events:
            message["events"] = self._events
        if self.state is not None and self.state != self.event.get("state"):
            message["state"] = self.state
        if self._progress:
            message["progress"] = self._progress
        return message

    def complete(self, outcome: Json) -> Json:
        return self._post(_url("TRACE_TASK_URL"), "/v1/task/complete", outcome)

    def _publish(self, output: Mapping[str, Any], body: bytes, rows: int) -> None:
        """Named by content: equal rows are the same object and the same publish."""
        name = f"{self._folder(output['dataset_uuid'])}{hashlib.sha256(body).hexdigest()}.jsonl"
        self._put(name, body)
        message = {
            "batch_uri": name,
            "dataset_uuid": output["dataset_uuid"],
            "dataset_version": output["dataset_version"],
            "record_count": rows,
            "content_type": "application/jsonl",
            "batch_size_bytes": len(body),
        }
        self._post(_url("TRACE_TASK_URL"), "/v1/task/buffer-publish", message)

    def _put(self, name: str, body: bytes) -> None:
        listener = os.environ.get("TRACE_OBJECTS_URL")
        if listener:
            put_object(listener, self._token, name, body)
            return
        keys = self._session()
        if keys.get("kind") != "session":
            error = {
                "code": "no_object_endpoint",
                "message": "this store has no keys, and TRACE_OBJECTS_URL is not set",
            }
            raise Refused(f"PUT {name}", 500, error)
        put_at_s3(keys, name, body)

    def _session(self) -> Json:
        """Credentials for the store, requested again before they expire."""
        if self._keys is None or time.monotonic() > self._keys_until:
            self._keys, self._keys_until = self.credentials(), time.monotonic() + KEYS_KEPT_SECONDS
        return self._keys

    def _folder(self, dataset: str) -> str:
        """The folder for batches of a dataset, from the token."""
        found = [claim for claim in _claims(self._token)["s3"]["write"] if f"/buffers/{dataset}/" in claim]
        if not found:
            error = {"code": "forbidden", "message": f"the token does not allow this task to publish to {dataset}"}
            raise Refused("publish", 403, error)
        return str(found[0])

    def _output(self, wanted: Output, *, buffered: bool) -> Mapping[str, Any]:
        fitting = [item for item in self.outputs if str(item["storage_location"]).startswith(BUFFERED) == buffered]
        if wanted is None and len(fitting) == 1:
            return fitting[0]
        for item in fitting:
            if wanted is not None and wanted in (item.get("name"), item["dataset_uuid"], item["output_index"]):
                return item
        known = ", ".join(str(item.get("name") or item["output_index"]) for item in fitting) or "none"
        what = "buffered dataset" if buffered else "output for events"
        named = "has not exactly one" if wanted is None else f"has no {wanted!r} as"
        raise ValueError(f"this job {named} {what}; it has: {known}")

    def _alert_output(self, wanted: Output) -> Mapping[str, Any]:
        """The only buffered dataset, or the default name of several, unless another is given."""
        buffered = [item for item in self.outputs if str(item["storage_location"]).startswith(BUFFERED)]
        if wanted is None and len(buffered) > 1 and any(item.get("name") == ALERT_EVENTS for item in buffered):
            wanted = ALERT_EVENTS
        return self._output(wanted, buffered=True)

    def _definition(self, wanted: Union[Alert, str]) -> Alert:
        if isinstance(wanted, Alert):
            return wanted
        for alert in self.alerts:
            if wanted in (alert.id, alert.name):
                return alert
        known = ", ".join(alert.name for alert in self.alerts) or "none"
        raise ValueError(f"there is no alert {wanted!r} for this task; it has: {known}")

    def _post(self, base: str, path: str, message: Mapping[str, Any], seconds: float = TIMEOUT_SECONDS) -> Json:
        if self.ended is not None:
            raise self.ended(f"POST {path}: the attempt is over")
        fence = {"task_id": self.id, "attempt": self.attempt, "lease_token": self.event["lease_token"]}
        body = json.dumps({**fence, **message}, separators=(",", ":")).encode()
        headers = {"content-type": "application/json", CAPABILITY: self._token}
        status, answer = call(base, Asked("POST", path, body, headers, seconds))
        if status == 200:
            found: Json = json.loads(answer)
            return found
        refused = refusal(f"POST {path}", status, answer)
        if refused.code == "lease_lost":
            raise LeaseLost(str(refused))
        raise refused


def logger() -> logging.Logger:
    """Writes lines with their level to standard error, from where they reach `trace task logs`."""
    found = logging.getLogger("trace_udf")
    if not found.handlers:
        found.addHandler(_ToStandardError())
        found.setLevel(logging.INFO)
        found.propagate = False
    return found


class _ToStandardError(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(f"{record.levelname} {self.format(record)}", file=sys.stderr, flush=True)  # noqa: T201
        except Exception:  # noqa: BLE001 - logging never fails its caller
            self.handleError(record)


def _alert(definition: Mapping[str, Any]) -> Alert:
    return Alert(
        definition["alert_definition_id"], definition["name"], definition["severity"], definition.get("params") or {}
    )


def _claims(token: str) -> Json:
    """The claims of the token, unchecked: the platform checks them."""
    part = token.split(".")[1]
    found: Json = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    return found


def _url(name: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise RuntimeError(f"{name} is not set: this function runs outside of Trace")
    return found.rstrip("/")
