"""STS and IAM over HTTP as `trace doctor` asks them: who calls, and what the roles of the template may do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs

from aiohttp import web

from tests.support.aws.iam import Request, is_allowed
from tests.support.aws.stack import ACCOUNT, Stack

NAMESPACES = {"sts": "https://sts.amazonaws.com/doc/2011-06-15/", "iam": "https://iam.amazonaws.com/doc/2010-05-08/"}


@dataclass
class IamServer:
    stack: Stack
    caller: str
    """The logical name of the role whose session calls."""
    takes_away: Callable[[str, str], bool] = lambda _action, _resource: False
    """Rights that the roles do not have after all."""
    simulates: bool = True
    url: str = ""
    asked: list[str] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        given = {name: values[0] for name, values in parse_qs((await request.read()).decode()).items()}
        self.asked.append(given["Action"])
        if given["Action"] == "GetCallerIdentity":
            session = self.stack.arn(self.caller).replace(":iam:", ":sts:").replace(":role/", ":assumed-role/")
            inner = f"<Arn>{session}/session</Arn><UserId>X</UserId><Account>{ACCOUNT}</Account>"
            return _xml("sts", "GetCallerIdentity", inner)
        if not self.simulates:
            said = "<Code>AccessDenied</Code><Message>not authorized to perform: iam:SimulatePrincipalPolicy</Message>"
            return web.Response(text=f"<ErrorResponse><Error>{said}</Error></ErrorResponse>", status=403)
        return _xml("iam", "SimulatePrincipalPolicy", f"<EvaluationResults>{self._results(given)}</EvaluationResults>")

    def _results(self, given: dict[str, str]) -> str:
        resource, role = given["ResourceArns.member.1"], given["PolicySourceArn"]
        context = {
            given[name]: given[name.replace("ContextKeyName", "ContextKeyValues.member.1")]
            for name in given
            if name.endswith(".ContextKeyName")
        }
        (logical,) = [name for name in self.stack.of_type("IAM::Role") if self.stack.arn(name) == role]
        actions = [value for name, value in given.items() if name.startswith("ActionNames.member.")]
        found = []
        for action in actions:
            allowed = is_allowed(Request(action, resource, role, context), self.stack.rights(logical))
            decision = "allowed" if allowed and not self.takes_away(action, resource) else "implicitDeny"
            inner = f"<EvalActionName>{action}</EvalActionName><EvalResourceName>{resource}</EvalResourceName>"
            found.append(f"<member>{inner}<EvalDecision>{decision}</EvalDecision></member>")
        return "".join(found)


@asynccontextmanager
async def running_iam(server: IamServer) -> AsyncIterator[IamServer]:
    app = web.Application()
    app.router.add_post("/", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def _xml(service: str, operation: str, inner: str) -> web.Response:
    result = f"<{operation}Result>{inner}</{operation}Result>"
    text = f'<{operation}Response xmlns="{NAMESPACES[service]}">{result}</{operation}Response>'
    return web.Response(text=text, content_type="text/xml")
