"""Text of others is shown and never obeyed: every verb, called on a Gateway whose every text is hostile."""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
import typer

from tracelake import cli
from tracelake.cli import main, printing
from tracelake.cli.app import app
from tracelake.cli.commands.data.udf_test import _print_result
from tracelake.cli.process_table import process_table
from tracelake.domain.text.escape_controls import on_one_line, visible, visible_json
from tracelake.errors import BadInput, InvalidDag
from tracelake.lite.certificates import ensure_certificates
from tracelake.lite.child import ChildStatus
from tracelake.lite.home import Home
from tracelake.lite.local_run.run import LocalResult
from tracelake.wire.calls.user_calls import CALLS
from tracelake.wire.internal.queries import ARROW, QueryAnswer

EVIL = "seen\x1b]0;title\x07\x1b[2J\x9b31m\u202eback\u200b\u2066\x7f\x85[red]:bomb:"
PROGRESS = re.compile(r"\x1b\[(\?25[lh]|2K|1A|[0-9;]*m)|\r")
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202e\u2066]")
ID = str(UUID(int=7))
DAG = "name: shop\njobs:\n  - {name: fetch, operator: noop, runtime: dispatcher, source: {kind: manual}}\n"

ARGUMENTS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dag validate": (("wrong.yaml",),),
    "dag deploy": (("shop.yaml",), ("shop.yaml", "--activate"), ("wrong.yaml",)),
    "dag list": ((),),
    "dag show": (("shop",), ("shop", "--yaml")),
    "dag activate": (("shop", ID),),
    "dag deactivate": (("shop", "--yes"),),
    "dag delete": (("shop", "--yes"),),
    "plan": (("shop.yaml",), ("wrong.yaml",)),
    "deploy": (("shop.yaml",), ("shop.yaml", "--when-ready", "--wait"), ("wrong.yaml",)),
    "release list": ((),),
    "release show": ((ID,),),
    "release promote": ((ID,), (ID, "--force", "--yes")),
    "release rollback": ((ID,),),
    "release abandon": ((ID,),),
    "datasets list": ((),),
    "datasets show": (("shop",),),
    "datasets sample": (("shop",),),
    "datasets files": (("shop",),),
    "datasets ledger": (("shop",),),
    "datasets drop": (("shop", "--yes"),),
    "datasets access": (("shop",), ("shop", "--set", "finance")),
    "user list": ((),),
    "user show": (("ana",),),
    "user add": (("ana",),),
    "user set-role": (("ana", "reader"),),
    "user remove": (("ana", "--yes"),),
    "role list": ((),),
    "role create": (("finance",),),
    "role delete": (("finance", "--force"),),
    "role members": (("finance",),),
    "role grant": (("finance", "ana"),),
    "role revoke": (("finance", "ana"),),
    "org list": ((),),
    "org create": (("bakery", "--admin", "ana"),),
    "org show": (("bakery",),),
    "org limits": (("bakery",), ("bakery", "--set", "tasks=5")),
    "org usage": ((), ("bakery",)),
    "token create": (("robot",),),
    "token list": ((),),
    "token revoke": (("robot",),),
    "secret list": ((),),
    "secret remove": (("api_key", "--force"),),
    "secret set": (("api_key",),),
    "service-token create": (("sink", "--name", "second"),),
    "service-token list": ((),),
    "service-token revoke": ((ID,),),
    "audit list": ((),),
    "audit export": ((),),
    "audit verify": ((),),
    "diff": (("shop",), ("shop", "1", "2", "--key", "id", "--range", "0-9")),
    "verify": (("shop",), ("shop", "--rows")),
    "db usage": ((),),
    "query": tuple(("SELECT 1 AS a", *more) for more in ((), ("--format", "csv"), ("--format", "json"), ("--export",))),
    "why": ((ID,), ("shop", "0-9")),
    "trigger": (("shop", "fetch"), ("shop", "fetch", "--wait")),
    "invalidate": (("shop", "--range", "0-9", "--reason", "x"),),
    "gaps": (("shop",),),
    "backfill start": (("shop", "--gaps"),),
    "backfill list": ((),),
    "backfill show": ((ID,),),
    "backfill pause": ((ID,),),
    "backfill resume": ((ID,),),
    "backfill cancel": ((ID,),),
    "udf push": (("code",),),
    "udf list": ((),),
    "alert create": (("whales",),),
    "alert list": ((),),
    "alert show": (("whales",),),
    "alert update": (("whales",),),
    "alert delete": (("whales",),),
    "alert deliveries": ((),),
    "alert retry": ((ID,),),
    "alert channel create": (("ops", "--url", "https://a.example/"),),
    "alert channel list": ((),),
    "alert channel show": (("ops",),),
    "alert channel update": (("ops",),),
    "alert channel delete": (("ops",),),
    "task list": ((),),
    "task show": ((ID,),),
    "task logs": ((ID,),),
    "task retry": ((ID,), ("--job", "shop", "--yes")),
    "task cancel": ((ID,), ("--job", "shop", "--yes")),
    "job pause": (("shop", "fetch"),),
    "job resume": (("shop", "fetch"),),
    "job pauses": ((),),
    "source list": ((),),
    "source show": (("shop", "fetch"),),
    "source pause": (("shop", "fetch"),),
    "source resume": (("shop", "fetch"),),
    "source fire": (("shop", "fetch"),),
    "source deliveries": (("shop", "fetch"),),
    "source replay": (("shop", "fetch", ID),),
    "outbox list": ((),),
    "outbox retry": ((),),
    "sink dead": ((),),
    "sink replay": ((ID,),),
}
"""Every verb that calls a Gateway, and its arguments."""
OWN_WORDS = (
    *("up", "down", "demo", "devchain", "status", "doctor", "token", "config show", "db migrate", "db check"),
    *("dispatcher", "worker", "sink", "runner", "gateway", "scheduler", "delivery"),
    *("udf build", "udf test", "udf runner-zip"),
    *("queue dead", "queue redrive", "backup", "restore"),
)
"""Verbs that show no text of a Gateway; those that show text of others (`status`, `udf test`, `queue dead`) have their
own test."""


def verbs(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    if command.hidden:
        return
    if not hasattr(command, "commands") or command.invoke_without_command:
        yield " ".join(words)
    for name, inner in getattr(command, "commands", {}).items():
        yield from verbs(inner, (*words, name))


INFO = msgspec.inspect
SAMPLES: Mapping[type, Callable[[Any], Any]] = {
    INFO.StructType: lambda kind: {field.encode_name: evil(field.type) for field in kind.fields},
    INFO.ListType: lambda kind: [evil(kind.item_type)],
    INFO.VarTupleType: lambda kind: [evil(kind.item_type)],
    INFO.TupleType: lambda kind: [evil(type_) for type_ in kind.item_types],
    INFO.DictType: lambda kind: {EVIL: evil(kind.value_type)},
    INFO.UnionType: lambda kind: evil(next(type_ for type_ in kind.types if not isinstance(type_, INFO.NoneType))),
    INFO.LiteralType: lambda kind: kind.values[0],
    INFO.IntType: lambda kind: max(1, kind.ge or 1),
    INFO.FloatType: lambda kind: max(1, kind.ge or 1),
    INFO.BoolType: lambda _: True,
    INFO.UUIDType: lambda _: ID,
    INFO.DateTimeType: lambda _: "2026-01-01T00:00:00Z",
    INFO.StrType: lambda kind: EVIL if kind.pattern is None else "shop",
    INFO.AnyType: lambda _: EVIL,
}


def evil(kind: Any) -> Any:
    """An answer of this type in which every text is hostile."""
    return SAMPLES[type(kind)](kind)


def answer(method: str, path: str) -> Any:
    if path == "/v1/query":
        return {**evil(INFO.type_info(QueryAnswer)), "rows": [[EVIL]], "exported": None}
    call = next(
        call
        for call in sorted(CALLS.values(), key=lambda call: call.path.count("{"))
        if call.method == method and re.fullmatch("/v1" + re.sub(r"{\w+}", "[^/]+", call.path), path)
    )
    if call.name in {"announce_bundle", "finalize_bundle"}:
        return {**evil(INFO.type_info(call.answer)), "status": "Ready", "upload": None}
    made = evil(INFO.type_info(call.answer))
    if call.name == "list_dataset_files":
        made["partitions"][0]["files"] = [{"name": EVIL, "rows": 1}]
    return made


def arrow() -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({EVIL: [EVIL]})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


class HostileGateway(BaseHTTPRequestHandler):
    refuses: str | None = None

    def do(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        body, status, kind = b"", 200, "application/json"
        if self.refuses == "dag":
            problem = dict.fromkeys(("field", "reason", "suggestion", "code"), EVIL) | {"line": 1, "column": 1}
            error = {"code": InvalidDag.code, "problems": [problem]}
            body, status = json.dumps({"error": error}).encode(), 422
        elif self.refuses:
            error = {"code": BadInput.code, "message": EVIL, "where": EVIL, "hint": EVIL}
            body, status = json.dumps({"error": error}).encode(), 422
        elif ARROW in self.headers.get("accept", ""):
            body, kind = arrow(), ARROW
        else:
            body = msgspec.json.encode(answer(self.command, self.path.partition("?")[0]))
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do  # noqa: N815 - as the library calls them

    def log_message(self, *_: Any) -> None:
        pass


class Terminal(io.TextIOWrapper):
    """Standard output that a verb takes for a terminal."""

    def __init__(self) -> None:
        self.written = io.BytesIO()
        super().__init__(self.written, encoding="utf-8")

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """Without what a progress bar of ours says to the terminal, none of which is in the text of others."""
        self.flush()
        return PROGRESS.sub("", self.written.getvalue().decode())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = Home(tmp_path_factory.mktemp("hostile") / "home")
    folder.make()
    files = ensure_certificates(folder.tls, datetime.now(UTC))
    server = ThreadingHTTPServer(("127.0.0.1", 0), HostileGateway)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    folder.ready.write_text(json.dumps({"endpoints": {"gateway": url}, "ca_file": str(files.ca), "user_token": "x"}))
    try:
        yield folder.root
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


Shown = Callable[..., str]


@pytest.fixture
def shown(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shown:
    """What a terminal gets of a verb, on standard output and standard error together."""
    monkeypatch.chdir(tmp_path)
    Path("shop.yaml").write_text(DAG)
    Path("wrong.yaml").write_text(DAG + f'"{json.dumps(EVIL)[1:-1]}": 1\n')
    Path("code").mkdir()
    Path("code", "main.py").write_text("def handler(task): ...\n")

    def run(*words: str) -> str:
        terminal = Terminal()
        at = () if words[:2] == ("dag", "validate") else ("--home", str(home))
        with monkeypatch.context() as patch:
            for name in ("stdout", "stderr"):
                patch.setattr(sys, name, terminal)
            patch.setattr(sys, "argv", ["trace", *words, *at])
            with pytest.raises(SystemExit):
                main()
        return terminal.shown()

    return run


def test_every_verb_is_known_here_by_whether_it_shows_text_of_others() -> None:
    assert sorted([*ARGUMENTS, *OWN_WORDS]) == sorted(verbs(typer.main.get_command(app)))


@pytest.mark.parametrize("verb", list(ARGUMENTS))
def test_no_verb_lets_a_terminal_obey_text_of_others(verb: str, shown: Shown) -> None:
    output = "".join(
        shown(*verb.split(), *more, *form)
        for more in ARGUMENTS[verb]
        for form in ((), ("--json",))
        if not (form and "--yaml" in more)
    )
    assert not OBEYED.search(output), OBEYED.search(output)
    assert "Traceback" not in output


@pytest.mark.parametrize("verb", ["dag show", "task list", "task show", "why", "query", "datasets sample", "sink dead"])
def test_what_was_made_visible_can_be_read(verb: str, shown: Shown) -> None:
    for more in ARGUMENTS[verb]:
        if "--export" not in more:
            output = shown(*verb.split(), *more)
            assert re.search(r"seen\\(x1b|u001b)\]0;title\\(x07|u0007)", output), output
            assert "[red]:bomb:" in output  # no markup of ours either


def test_a_query_says_as_of_which_commit_it_read_a_table(shown: Shown) -> None:
    assert " at commit 1 or later" in shown("query", "SELECT 1 AS a")  # all that this Gateway answers is hot


@pytest.mark.parametrize("refuses", ["request", "dag"])
def test_a_refusal_of_the_gateway_is_made_visible(refuses: str, shown: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostileGateway, "refuses", refuses)
    for words in (("dag", "deploy", "shop.yaml"), ("task", "list")):
        for form in ((), ("--json",)):
            output = shown(*words, *form)
            assert not OBEYED.search(output)
            assert "seen\\" in output


def test_output_of_a_function_and_status_of_a_process_are_made_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, terminal)
    _print_result(
        LocalResult("Failed", EVIL, {EVIL: [{EVIL: EVIL}]}, [{EVIL: EVIL}], None, {EVIL: EVIL}, EVIL, 1.0),
        in_json=False,
    )
    printing.out.print(process_table([ChildStatus("worker", "failed", status=EVIL)]))
    assert terminal.shown().count("seen\\") > 5
    assert not OBEYED.search(terminal.shown())


def test_csv_and_yaml_in_a_pipe_are_what_was_stored(
    home: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for words in (("query", "SELECT 1 AS a", "--format", "csv"), ("dag", "show", "shop", "--yaml")):
        monkeypatch.setattr(sys, "argv", ["trace", *words, "--home", str(home)])
        with pytest.raises(SystemExit):
            main()
        assert EVIL.encode() in capfdbinary.readouterr().out


def test_only_one_module_of_the_command_line_writes_to_standard_output() -> None:
    """All others go through it: else text of others would reach a terminal by another way."""
    # The others write a token or an address that Trace made.
    own = {"printing.py", "token.py", "service_token.py", "devchain.py"}
    assert {file.name for file in Path(cli.__file__).parent.rglob("*.py") if writes(file)} == own


def writes(file: Path) -> bool:
    for node in ast.walk(ast.parse(file.read_text())):
        written = isinstance(node, ast.Attribute) and node.attr in {"write", "echo", "secho"}
        stream = ast.unparse(node.value) if isinstance(node, ast.Attribute) else ""
        printed = isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
        if printed or (written and stream.startswith(("sys.std", "typer", "click"))):
            return True
    return False


def test_every_control_and_every_bidirectional_character_has_an_escape() -> None:
    directions = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        kind = unicodedata.category(character)
        invisible = kind == "Cf" and unicodedata.bidirectional(character) in directions | {"BN", "R", "AL", "L"}
        if (kind in {"Cc", "Cs", "Zl", "Zp"} or invisible) and number not in SIGNS:
            assert on_one_line(character).isascii(), hex(number)
            assert visible_json(f'"{character}"').isascii() or character in "\n\t", hex(number)
    assert visible("a\tb\r\nc") == "a\tb\nc"
    assert on_one_line("a\n\tb") == "a\\n\\tb"
    unchanged = "Grüße, 数据, 👍, \xa0, e\u0301, ⚠\ufe0f"
    assert visible(unchanged) == on_one_line(unchanged) == unchanged


SIGNS = {0x070F, 0x110BD, 0x110CD}
"""Format characters by their category that have a shape: marks around Syriac and Kaithi numbers."""
