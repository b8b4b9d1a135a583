"""Signatures of webhooks, by the examples that senders publish."""

from __future__ import annotations

import pytest

from tests.support.identity.hook_signatures import sign
from tracelake.domain.sources.signatures import BadSignature, HookScheme, Signed, check_time, verify

SVIX = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}
"""The example of Standard Webhooks."""
SVIX_SECRET, SVIX_BODY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
GITHUB = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
"""GitHub's example: the body and the secret are these."""
GITHUB_SECRET, GITHUB_BODY = "It's a Secret to Everybody", b"Hello, World!"


def test_the_published_examples_are_verified() -> None:
    assert verify(HookScheme.STANDARD, SVIX, SVIX_BODY, [SVIX_SECRET]) == Signed(1614265330, SVIX["webhook-id"])
    signed = verify(HookScheme.GITHUB, {"x-hub-signature-256": GITHUB}, GITHUB_BODY, [GITHUB_SECRET])
    assert signed == Signed(None, None)
    assert verify(HookScheme.HMAC, {"x-signature-256": GITHUB}, GITHUB_BODY, [GITHUB_SECRET]) == Signed(None, None)


def test_one_of_several_signatures_and_of_several_secrets_is_enough() -> None:
    headers = SVIX | {"webhook-signature": f"v1a,x v1,AAAA {SVIX['webhook-signature']}"}
    assert verify(HookScheme.STANDARD, headers, SVIX_BODY, ["another secret of it", SVIX_SECRET]).delivery
    first = sign(HookScheme.STRIPE, b"{}", "the first secret", 12)["stripe-signature"]
    header = {"stripe-signature": f"{first},v1=00,v0=11"}
    assert verify(HookScheme.STRIPE, header, b"{}", ["the next secret", "the first secret"]) == Signed(12, None)


@pytest.mark.parametrize(
    ("scheme", "headers"),
    [
        (HookScheme.STANDARD, SVIX | {"webhook-id": "msg_other"}),
        (HookScheme.STANDARD, SVIX | {"webhook-timestamp": "1614265331"}),
        (HookScheme.STANDARD, SVIX | {"webhook-signature": "v1," + "v1, " * 20}),
        (HookScheme.STANDARD, SVIX | {"webhook-signature": SVIX["webhook-signature"].replace("v1,", "v2,")}),
        (HookScheme.STANDARD, {}),
        (HookScheme.STRIPE, {"stripe-signature": "t=1,t=2,v1=00"}),
        (HookScheme.STRIPE, {"stripe-signature": "t=-1,v1=00"}),
        (HookScheme.STRIPE, {"stripe-signature": ""}),
        (HookScheme.GITHUB, {"x-hub-signature-256": GITHUB[:-1]}),
        (HookScheme.GITHUB, {"x-hub-signature": GITHUB}),
    ],
)
def test_what_differs_from_what_was_signed_is_refused(scheme: HookScheme, headers: dict[str, str]) -> None:
    with pytest.raises(BadSignature):
        verify(scheme, headers, SVIX_BODY, [SVIX_SECRET])


@pytest.mark.parametrize("off", [-301, 301])
def test_a_signed_time_may_be_off_by_the_tolerance_in_either_direction(off: int) -> None:
    check_time(Signed(1000, None), 1300, 300)
    check_time(Signed(1000, None), 700, 300)
    check_time(Signed(None, None), 0, 300)
    with pytest.raises(BadSignature):
        check_time(Signed(1000, None), 1000 + off, 300)
