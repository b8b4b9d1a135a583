"""Tasks as job runs of EMR Serverless, each with its own session policy: the job's role, cut to the task's token.

The task is written into the attempt's scratch folder, which that policy lets the job read and nobody else; the job run
itself names only the place. `tracelake/worker/job_run.py` is what runs there.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import structlog

from tracelake.adapters.aws.faults import THROTTLED
from tracelake.adapters.aws.service import AwsFault, AwsRefusal, AwsService
from tracelake.capability.claims import Claims, decode
from tracelake.capability.jws import parse_token
from tracelake.domain.access.object_names import ObjectName
from tracelake.domain.access.session_policy import session_policy
from tracelake.domain.access.storage_locations import SCRATCH
from tracelake.errors import Forbidden, ServiceUnavailable, SettingsError, TraceError
from tracelake.ports import Invoked, ObjectStore, Places
from tracelake.settings import EmrSettings, Settings

SERVICE: Final = "emr-serverless"
MISSING: Final = "ResourceNotFoundException"
INVALID: Final = "ValidationException"
TRIES: Final = 3
"""Of a start whose answer was lost: with the same token it starts nothing twice."""
AGAIN_SECONDS: Final = 1.0
LEAST_MINUTES: Final = 5
"""The shortest time that EMR Serverless gives a job run."""
NAME_LENGTH: Final = 256
ERROR_LENGTH: Final = 4_000
FIXES: Final = {
    MISSING: "create the application (docs/how-to/run_tasks_on_emr_serverless.md), or correct the `application` of the"
    " runtime or emr.region",
    INVALID: "correct emr.role_arn, which the service must be able to assume, emr.entry_point or emr.submit_parameters",
    "ConflictException": "wait until the application is started, or start it",
    "ServiceQuotaExceededException": "raise the quota of vCPUs of EMR Serverless, or the capacity of the application",
}
"""What to do about refusals of EMR Serverless itself. None of them has started anything."""
BUSY: Final = THROTTLED | {"ServiceQuotaExceededException"}


@dataclass(frozen=True)
class JobPlace:
    """What a job run needs to reach the task API and the object store."""

    task_url: str
    ca: str | None
    """Certificates in PEM; None: those of the image."""
    region: str
    endpoint: str | None

    @property
    def arguments(self) -> list[str]:
        """With which the job opens the object store."""
        return [self.region, *([self.endpoint] if self.endpoint else [])]

    @classmethod
    def of(cls, settings: Settings) -> JobPlace:
        url, ca = settings.endpoints.dispatcher_task, settings.tls.ca
        if url is None:
            hint = "the address of the task API, as job runs reach it"
            raise SettingsError("endpoints.dispatcher_task is not set", where="endpoints.dispatcher_task", hint=hint)
        text = Path(ca).read_text(encoding="ascii") if ca else None
        return cls(url, text, settings.objects.region, settings.objects.endpoint)


class EmrJobRunner:
    """Of one application. Belongs to one event loop."""

    def __init__(self, settings: EmrSettings, application: str, objects: ObjectStore, place: JobPlace | None) -> None:
        """Opens nothing yet. `place`: None where nothing is started."""
        if settings.role_arn is None:
            hint = "the role of job runs, such as arn:aws:iam::123456789012:role/trace-job"
            raise SettingsError("emr.role_arn is not set", where="emr.role_arn", hint=hint)
        self._settings, self._role, self._application = settings, settings.role_arn, application
        self._objects, self._place = objects, place
        self._aws = AwsService(SERVICE, settings.region, settings.endpoint, unavailable=ServiceUnavailable)
        self._leaving = False
        self._log = structlog.get_logger().bind(application=application)

    async def invoke(self, payload: bytes, *, org: UUID, timeout_seconds: float) -> Invoked:
        del org  # the token has it, and the job has that token alone
        place = self._place
        assert place is not None  # noqa: S101 - whoever starts job runs has given one
        task = json.loads(payload)
        claims = decode(parse_token(task["capability_token"]).payload)
        try:
            policy = session_policy(claims.grants.storage, partition=self._role.split(":")[1])
        except Forbidden as wide:
            return Invoked(f"{wide.message} ({wide.hint})", started=False, refused=True)
        try:
            name = await self._store(task, claims, place)
        except TraceError as away:
            return Invoked(away.message, started=False)
        started = await self._start(self._request(task, [str(name), *place.arguments], policy, timeout_seconds))
        return started if isinstance(started, Invoked) else await self._watch(started)

    async def places(self) -> Places | None:
        """EMR Serverless says it by refusing."""
        return None

    def leave(self) -> None:
        self._leaving = True

    async def examine(self) -> str:
        """The state of the application. ServiceUnavailable if it is not there, with what to do."""
        try:
            answer = await self._aws.call(
                "get_application", handled=frozenset({MISSING}), applicationId=self._application
            )
        except AwsRefusal:
            raise self._unavailable("is not there", FIXES[MISSING]) from None
        found = answer["application"]
        if found["state"] == "TERMINATED":
            raise self._unavailable("is TERMINATED", FIXES[MISSING])
        return f"{found['releaseLabel']}, {found['state']}"

    async def close(self) -> None:
        await self._aws.close()

    async def _store(self, task: dict[str, Any], claims: Claims, place: JobPlace) -> ObjectName:
        (folder,) = [item for item in claims.grants.storage.write if item.segments[0] == SCRATCH]
        name = folder.object(f"job-run-{UUID(task['lease_token']).hex}.json")
        document = {"task": task, "task_url": place.task_url, "ca": place.ca}
        await asyncio.to_thread(self._objects.put, name, json.dumps(document).encode(), replace=True)
        return name

    async def _start(self, request: Mapping[str, Any]) -> str | Invoked:
        """The id of the job run; or why there is none."""
        for left in reversed(range(TRIES)):
            try:
                return str((await self._aws.call_once("start_job_run", waits=0, **request))["jobRunId"])
            except AwsFault as wrong:
                fault = wrong.fault
            unsure = fault.may_be_done and fault.code not in FIXES
            if not unsure or not left:
                break
            await asyncio.sleep(AGAIN_SECONDS)
        error = f"{self._where}: {fault.message} ({FIXES.get(fault.code, fault.hint)})"[:ERROR_LENGTH]
        if unsure:
            return Invoked(error, lost=True)
        return Invoked(error, started=False, busy=fault.code in BUSY)

    def _request(
        self, task: dict[str, Any], arguments: list[str], policy: str, timeout_seconds: float
    ) -> dict[str, Any]:
        submit: dict[str, Any] = {"entryPoint": self._settings.entry_point, "entryPointArguments": arguments}
        if self._settings.submit_parameters is not None:
            submit["sparkSubmitParameters"] = self._settings.submit_parameters
        return {
            "applicationId": self._application,
            "clientToken": UUID(task["lease_token"]).hex,
            "executionRoleArn": self._role,
            "executionIamPolicy": {"policy": policy},
            "jobDriver": {"sparkSubmit": submit},
            "executionTimeoutMinutes": max(LEAST_MINUTES, math.ceil(timeout_seconds / 60)),
            "name": f"{task['job']['dag_name']}.{task['job']['name']} {task['task_id']}"[:NAME_LENGTH],
        }

    async def _watch(self, run: str) -> Invoked:
        log = self._log.bind(job_run=run)
        log.info("a job run was started")
        try:
            while True:
                await asyncio.sleep(self._settings.poll_seconds)
                if (ended := await self._ended(run)) is not None:
                    return ended
        except asyncio.CancelledError:
            if not self._leaving:
                await asyncio.shield(self._cancel(run))
            raise

    async def _ended(self, run: str) -> Invoked | None:
        """None: it has not, or that is not known."""
        try:
            answer = await self._aws.call(
                "get_job_run", handled=frozenset({MISSING}), applicationId=self._application, jobRunId=run
            )
        except AwsRefusal:
            return Invoked(f"{self._where}: the job run {run} is gone", lost=True)
        except ServiceUnavailable as away:  # the job reports its end by itself
            self._log.warning("the state of a job run is not known", job_run=run, because=away.message)
            return None
        found = answer["jobRun"]
        state, details = found["state"], found.get("stateDetails", "")
        about = f"the job run {run} of EMR Serverless is {state}: {details}"[:ERROR_LENGTH]
        match state:
            case "SUCCESS":
                return Invoked()
            case "FAILED":
                return Invoked(about)
            case "CANCELLED":
                return Invoked(about, lost=True)
        return None

    async def _cancel(self, run: str) -> None:
        with suppress(AwsRefusal):
            try:
                handled = frozenset({MISSING, INVALID})  # it has ended
                await self._aws.call("cancel_job_run", handled=handled, applicationId=self._application, jobRunId=run)
            except ServiceUnavailable as away:
                self._log.warning("a job run could not be canceled: it ends itself", job_run=run, because=away.message)

    @property
    def _where(self) -> str:
        return f"application {self._application} of EMR Serverless in {self._aws.region}"

    def _unavailable(self, what: str, hint: str) -> ServiceUnavailable:
        return ServiceUnavailable(f"{self._where} {what}", where="runtimes.<name>.application", hint=hint)
