"""Error texts that are stored show what went wrong, and no secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward_consumer.redaction import LONGEST, clean, describe


@pytest.mark.parametrize(
    "text",
    [
        "cannot reach postgresql://app:S3CRET@db:5432/hr",
        "Authorization: Bearer S3CRETtoken",
        "header Basic UzNDUkVUUzNDUkVU0S3CRET",
        "login failed: password=S3CRET",
        '{"api_key": "S3CRET"}',
        "{'client_secret': 'S3 CRET S3CRET'}",
        "https://mail/send?access_token=S3CRET&x=1",
        "AWS_SECRET_ACCESS_KEY: S3CRET",
        "jwt eyJhbGciOi.S3CRETpayload.S3CRETsig",
        "DETAIL:  Failing row contains (1, Ann, S3CRET, 5000).",
        "-----BEGIN PRIVATE KEY-----\nS3CRET",
    ],
)
def test_secrets_are_masked(text: str) -> None:
    assert "S3CRET" not in clean(text)
    assert "***" in clean(text)


@pytest.mark.parametrize(
    "text",
    ["employee 4711 has no contract", "404 at https://mail.local/send/4711", "tokens left: none", "key (id)=(4)"],
)
def test_other_text_stays(text: str) -> None:
    assert clean(text).replace("***", "none") == text


def test_the_class_is_named_and_the_text_is_cut() -> None:
    assert describe(KeyError("id")) == "KeyError: 'id'"
    assert describe(TimeoutError()) == "TimeoutError"
    long = describe(RuntimeError("x" * 100_000))
    assert len(long) == LONGEST
    assert long.endswith("x…")


def test_an_exception_without_a_readable_message_is_described() -> None:
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert "cannot be read" in describe(Nasty())


@given(st.text(st.characters(exclude_categories=()), max_size=2_000))
def test_any_text_fits_a_text_column(text: str) -> None:
    cleaned = clean(text)
    assert "\0" not in cleaned.encode().decode()
    assert len(cleaned) <= LONGEST
