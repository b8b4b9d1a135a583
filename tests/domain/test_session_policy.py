"""The session policy: what it allows is what the token does, and a policy that says more is never sent. 3 s."""

from __future__ import annotations

import json
from typing import Any, Final
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import ROOT
from tests.support.session_policy import allows
from tracelake.domain.access.grants import StorageGrant
from tracelake.domain.access.object_names import Folder, ObjectName
from tracelake.domain.access.session_policy import LIST, MAX_CHARS, READ, WRITE, refuse_wider, session_policy
from tracelake.domain.access.storage_locations import generation_folder, scratch_folder
from tracelake.errors import Forbidden, InvalidRequest
from tracelake.wire.task.markers import attempt_folder

INPUT, OWN = Folder.parse("s3://lake/a/foo/"), Folder.parse("s3://scratch/t/1/")
GRANT = StorageGrant(read=frozenset({INPUT, OWN}), write=frozenset({OWN}))
NOTHING = StorageGrant(frozenset(), frozenset())
PAGE: Final = ROOT / "docs" / "concepts" / "object_store_credentials.md"


def test_a_policy_names_objects_below_folders_and_lists_only_by_prefix() -> None:
    assert json.loads(session_policy(GRANT)) == {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::lake/a/foo/*"]},
            {"Effect": "Allow", "Action": sorted(READ | WRITE), "Resource": ["arn:aws:s3:::scratch/t/1/*"]},
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": "arn:aws:s3:::lake",
                "Condition": {"StringLike": {"s3:prefix": ["a/foo/*"]}},
            },
            {
                "Effect": "Allow",
                "Action": "s3:ListBucket",
                "Resource": "arn:aws:s3:::scratch",
                "Condition": {"StringLike": {"s3:prefix": ["t/1/*"]}},
            },
        ],
    }


def test_no_grant_is_an_explicit_denial_and_never_the_rights_of_the_role() -> None:
    policy = session_policy(NOTHING)
    assert json.loads(policy)["Statement"] == [{"Effect": "Deny", "Action": "*", "Resource": "*"}]
    assert not any(allows(policy, action, "lake", "a/foo/x", prefix="a/foo/") for action in {*READ, *WRITE, LIST})


def test_too_many_folders_are_refused_and_not_cut() -> None:
    many = frozenset(Folder("lake", ("datasets", str(n))) for n in range(200))
    with pytest.raises(Forbidden, match="200 folders"):
        session_policy(StorageGrant(many, frozenset()))
    few = frozenset(Folder("lake", ("datasets", str(n))) for n in range(20))
    assert len(session_policy(StorageGrant(few, frozenset()))) <= MAX_CHARS


def test_four_inputs_and_an_output_fit_into_a_policy_and_a_fifth_input_does_not() -> None:
    """With the buckets of `trace up`; the page about credentials says so."""
    org, task = uuid4(), uuid4()
    made = [generation_folder("trace", org, uuid4(), uuid4()) for _ in range(6)]
    write = {attempt_folder(str(made[0]), task, 1), scratch_folder("trace-scratch", org, task, 1)}
    assert session_policy(StorageGrant(frozenset({*made[1:5], *write}), frozenset(write)))
    with pytest.raises(Forbidden, match="too many"):
        session_policy(StorageGrant(frozenset({*made[1:], *write}), frozenset(write)))
    assert "about four\n  inputs" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("segments", [("*",), ("a", ".."), ("a", ""), ("a/b",), ("${aws:username}",), ('x"',)])
def test_a_folder_that_was_not_parsed_makes_no_policy(segments: tuple[str, ...]) -> None:
    made = Folder("lake", segments)
    with pytest.raises(InvalidRequest):
        session_policy(StorageGrant(frozenset({made}), frozenset()))


def policy_of(*statements: dict[str, Any]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def an_allow(action: Any, resource: Any, **more: Any) -> dict[str, Any]:
    return {"Effect": "Allow", "Action": action, "Resource": resource, **more}


def by_prefix(prefix: Any, operator: str = "StringLike") -> dict[str, Any]:
    return {operator: {"s3:prefix": prefix}}


GET, PUT = "s3:GetObject", "s3:PutObject"
WIDER = {
    "no statements": policy_of(),
    "the bucket": policy_of(an_allow(GET, "arn:aws:s3:::lake/*")),
    "no slash": policy_of(an_allow(GET, "arn:aws:s3:::lake/a/foo*")),
    "the parent": policy_of(an_allow(GET, "arn:aws:s3:::lake/a/*")),
    "a wildcard inside": policy_of(an_allow(GET, "arn:aws:s3:::lake/a/*/foo/*")),
    "one character": policy_of(an_allow(GET, "arn:aws:s3:::lake/a/fo?/x")),
    "a variable": policy_of(an_allow(GET, "arn:aws:s3:::lake/${aws:username}/*")),
    "any bucket": policy_of(an_allow(GET, "arn:aws:s3:::*/a/foo/*")),
    "another bucket": policy_of(an_allow(GET, "arn:aws:s3:::lakes/a/foo/*")),
    "everything": policy_of(an_allow(GET, "*")),
    "no resource of S3": policy_of(an_allow(GET, "arn:aws:iam:::lake/a/foo/*")),
    "writing what is only read": policy_of(an_allow(PUT, "arn:aws:s3:::lake/a/foo/*")),
    "one of two resources": policy_of(an_allow(GET, ["arn:aws:s3:::lake/a/foo/*", "arn:aws:s3:::lake/b/*"])),
    "one of two actions": policy_of(an_allow([GET, PUT], "arn:aws:s3:::lake/a/foo/*")),
    "all actions": policy_of(an_allow("s3:*", "arn:aws:s3:::lake/a/foo/*")),
    "an action that is not needed": policy_of(an_allow("s3:PutObjectAcl", "arn:aws:s3:::scratch/t/1/*")),
    "all but an action": policy_of(
        {"Effect": "Allow", "NotAction": "s3:PutObject", "Resource": "arn:aws:s3:::lake/a/foo/*"}
    ),
    "all but a resource": policy_of({"Effect": "Allow", "Action": GET, "NotResource": "arn:aws:s3:::lake/b/*"}),
    "an effect unheard of": policy_of({"Effect": "allow", "Action": GET, "Resource": "arn:aws:s3:::lake/a/foo/*"}),
    "a list without a condition": policy_of(an_allow(LIST, "arn:aws:s3:::lake")),
    "a list of any prefix": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["*"]))),
    "a list of no prefix": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix([""]))),
    "a list of a shorter prefix": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["a/*"]))),
    "a list without the slash": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["a/foo*"]))),
    "a list of one more": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["a/foo/*", "b/*"]))),
    "a list unless": policy_of(an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["a/foo/*"], "StringNotLike"))),
    "a list if it says so": policy_of(
        an_allow(LIST, "arn:aws:s3:::lake", Condition=by_prefix(["a/foo/*"], "StringLikeIfExists"))
    ),
    "a list in any bucket": policy_of(an_allow(LIST, "arn:aws:s3:::*", Condition=by_prefix(["a/foo/*"]))),
    "a list of keys": policy_of(an_allow(LIST, "arn:aws:s3:::lake/a/foo/*", Condition=by_prefix(["a/foo/*"]))),
}


@pytest.mark.parametrize("case", WIDER)
def test_a_policy_wider_than_the_token_is_refused_before_it_is_sent(case: str) -> None:
    with pytest.raises(Forbidden):
        refuse_wider(WIDER[case], GRANT)


def test_a_policy_narrower_than_the_token_passes() -> None:
    refuse_wider(policy_of(an_allow(GET, "arn:aws:s3:::lake/a/foo/only/this")), GRANT)
    refuse_wider(session_policy(GRANT), GRANT)


def test_the_matcher_reads_a_policy_as_a_store_does() -> None:
    policy = policy_of(
        an_allow("s3:Get*", "arn:aws:s3:::lake/a/?oo/*"),
        {"Effect": "Deny", "Action": "*", "Resource": "arn:aws:s3:::lake/a/foo/secret*"},
        an_allow(LIST, "arn:aws:s3:::lake", Condition={"DateLessThan": {"aws:CurrentTime": "2099"}}),
    )
    assert allows(policy, GET, "lake", "a/foo/x/y")
    assert allows(policy, GET, "lake", "a/boo/x\ny")
    assert not allows(policy, GET, "lake", "a/fooo/x")
    assert not allows(policy, GET, "lake", "a/foo/secrets")
    assert not allows(policy, PUT, "lake", "a/foo/x")
    assert not allows(policy, LIST, "lake", prefix="a/foo/")


SEGMENTS = st.sampled_from(["a", "aa", "a.b", "b", "a=1", "A", "a+", "_", "..."])
FOLDERS = st.builds(Folder, st.sampled_from(["lake", "lake2"]), st.lists(SEGMENTS, min_size=1, max_size=3).map(tuple))
GRANTS = st.builds(
    lambda read, write: StorageGrant(read | write, write),
    st.frozensets(FOLDERS, max_size=3),
    st.frozensets(FOLDERS, max_size=2),
)
KEYS = st.lists(SEGMENTS, min_size=1, max_size=4).map(tuple)


@settings(deadline=None, derandomize=True, database=None)
@given(GRANTS, st.sampled_from(["lake", "lake2", "lak"]), KEYS)
def test_what_the_policy_allows_is_what_the_grant_allows(
    grant: StorageGrant, bucket: str, key: tuple[str, ...]
) -> None:
    policy, name = session_policy(grant), ObjectName(bucket, key)
    assert all(allows(policy, action, bucket, name.key) == grant.may_read(name) for action in READ)
    assert all(allows(policy, action, bucket, name.key) == grant.may_write(name) for action in WRITE)
    folder = Folder(bucket, key)
    assert allows(policy, LIST, bucket, prefix=folder.key) == grant.may_list(folder)
    assert not allows(policy, LIST, bucket)
    assert not allows(policy, LIST, bucket, prefix="")
    assert not allows(policy, "s3:PutObjectAcl", bucket, name.key)
