"""A storage grant as the session policy of an S3 store, and the judge that reads it before any store does.

Deny by default: what no statement allows is refused, and a policy is never empty, since a store takes none at all for
the role's own rights. Names were read as folders long before; here they are written, with the slash that keeps `foo/`
from meaning `foobar`. The judge does not trust the writer: it takes the text as it would be sent, and refuses it if a
pattern in it could match a single key outside of the grant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder
from tracelake.errors import Forbidden, InvalidRequest

READ: Final = frozenset({"s3:GetObject"})
WRITE: Final = frozenset({"s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"})
LIST: Final = "s3:ListBucket"
MAX_CHARS: Final = 2048
"""What STS takes. More is refused: a policy that was cut would be another policy."""
VERSION: Final = "2012-10-17"

_ARN: Final = re.compile(r"arn:aws[a-z-]*:s3:::(?P<bucket>[^/]*)(?:/(?P<key>.*))?", re.DOTALL)
_WILD: Final = re.compile(r"[*?$]")
_KNOWN: Final = frozenset({"Effect", "Action", "Resource", "Condition"})


def session_policy(storage: StorageGrant, *, partition: str = "aws") -> str:
    """The policy, judged. Forbidden if it would be too long, or allow anything beside the grant."""
    policy = json.dumps({"Version": VERSION, "Statement": _statements(storage, partition)}, separators=(",", ":"))
    if len(policy) > MAX_CHARS:
        raise Forbidden(
            f"the token names {len(storage.read)} folders: too many for one set of credentials",
            where="/s3",
            hint="read some of the inputs through /v1/task/query, or part the job",
        )
    refuse_wider(policy, storage)
    return policy


def _statements(storage: StorageGrant, partition: str) -> list[dict[str, Any]]:
    read, write = sorted(map(_canonical, storage.read)), sorted(map(_canonical, storage.write))
    if not read:
        return [{"Effect": "Deny", "Action": "*", "Resource": "*"}]
    arn = f"arn:{partition}:s3:::"
    # A folder to write is in one statement, not in two: what STS takes is short.
    by_actions = (READ, [folder for folder in read if folder not in storage.write]), (READ | WRITE, write)
    statements = [_objects(arn, actions, folders) for actions, folders in by_actions if folders]
    for bucket in sorted({folder.bucket for folder in read}):
        prefixes = [f"{folder.key}*" for folder in read if folder.bucket == bucket]
        statements.append(
            {
                "Effect": "Allow",
                "Action": LIST,
                "Resource": f"{arn}{bucket}",
                "Condition": {"StringLike": {"s3:prefix": prefixes}},
            }
        )
    return statements


def _objects(arn: str, actions: Iterable[str], folders: Iterable[Folder]) -> dict[str, Any]:
    resources = [f"{arn}{folder.bucket}/{folder.key}*" for folder in folders]
    return {"Effect": "Allow", "Action": sorted(actions), "Resource": resources}


def _canonical(folder: Folder) -> Folder:
    """Refuses a name that would not parse to itself again."""
    if Folder.parse(str(folder)) != folder:
        raise InvalidRequest("a folder that is not what it is written as", where="/s3")
    return folder


def refuse_wider(policy: str, storage: StorageGrant) -> None:
    """Forbidden unless every key that the policy could allow is one that the grant allows.

    Whatever a pattern matches begins with what stands before its first wildcard: if that much lies in a granted folder,
    so does everything that it matches.
    """
    for statement in _read(policy):
        if not statement.keys() <= _KNOWN or statement.get("Effect") not in {"Allow", "Deny"}:
            raise _wider("it contains something unknown")
        if statement["Effect"] == "Deny":
            continue
        for action in _several(statement.get("Action")):
            for resource in _several(statement.get("Resource")):
                _refuse_reach(action, resource, statement.get("Condition"), storage)


def _refuse_reach(action: str, resource: str, condition: Any, storage: StorageGrant) -> None:
    arn = _ARN.fullmatch(resource)
    if arn is None or _WILD.search(arn["bucket"]):
        raise _wider("it names no bucket")
    if action == LIST:
        prefixes = _prefixes(condition)
        if arn["key"] is not None or not prefixes:
            raise _wider("it lists without a prefix")
        heads, folders = prefixes, storage.read
    elif action in READ | WRITE and condition is None:
        heads, folders = [arn["key"] or ""], storage.write if action in WRITE else storage.read
    else:
        raise _wider("it allows an action that is not needed")
    for head in heads:
        literal = _WILD.split(head, maxsplit=1)[0]
        if not any(folder.bucket == arn["bucket"] and literal.startswith(folder.key) for folder in folders):
            raise _wider("it reaches beyond the folders of the token")


def _prefixes(condition: Any) -> list[str] | None:
    """The patterns of a condition on the listed prefix, if it is exactly that."""
    match condition:
        case {"StringLike": {"s3:prefix": given, **more}, **others} if not more and not others:
            return list(_several(given))
    return None


def _read(policy: str) -> Iterator[Mapping[str, Any]]:
    document = json.loads(policy)
    if document.keys() != {"Version", "Statement"} or not document["Statement"]:
        raise _wider("it is empty, which is no limit at all")
    yield from document["Statement"]


def _several(value: Any) -> Iterator[str]:
    yield from [value] if isinstance(value, str) else value or []


def _wider(why: str) -> Forbidden:
    return Forbidden(f"no credentials are made: the policy is wider than the token; {why}", where="/s3")
