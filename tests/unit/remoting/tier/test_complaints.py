"""What object stores say, as the library passes it on, in short and with what to do."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, NotFoundError, UnauthenticatedError

from remoting.tier.complaints import advice_of, is_too_short, is_without_bucket, reason_of

_ASKED = "Generic S3 error: Error performing list request: Error performing GET http://127.0.0.1:9000/bucket?list-type=2&prefix=x"
_NOT_FOUND = (
    f"{_ASKED} in 6.4ms - Server returned non-2xx status code: 404 Not Found: <?xml version='1.0'?>\n"
    "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>\n\nDebug source:\nGeneric {}"
)


def test_a_server_is_given_its_own_words_and_a_person_what_to_do() -> None:
    error = NotFoundError(_NOT_FOUND)
    assert reason_of(error) == "NoSuchBucket: The specified bucket does not exist"
    assert "create it" in (advice_of(error) or "")
    assert is_without_bucket(error)
    assert "credentials" in (advice_of(UnauthenticatedError("whatever it says")) or "")
    assert advice_of(GenericError("503 Slow Down")) is None


@pytest.mark.parametrize(
    "said",
    [
        "403 Forbidden: <Error><Code>QuotaExceeded</Code></Error>",
        "400 Bad Request: <Error><Code>XMinioAdminBucketQuotaExceeded</Code></Error>",
        "507 Insufficient Storage: <Error><Code>XMinioStorageFull</Code></Error>",
        "507 Insufficient Storage",
    ],
)
def test_who_has_no_room_says_it_in_several_ways(said: str) -> None:
    told = advice_of(GenericError(f"{_ASKED} in 6.4ms - Server returned non-2xx status code: {said}"))
    assert told is not None
    assert told.startswith("it is full: make room there")


@pytest.mark.parametrize("said", ["error sending request", "operation timed out"])
def test_who_does_not_answer_is_named_the_same_each_time(said: str) -> None:
    told = {
        reason_of(
            GenericError(
                f"{_ASKED} in {ms}ms, after 2 retries, max_retries: 2, retry_timeout: 180s  - HTTP error: {said}"
            )
        )
        for ms in (225.2, 286.2)
    }
    (sentence,) = told
    assert sentence.startswith(f"http://127.0.0.1:9000 does not answer ({said}): see that it runs")
    assert advice_of(GenericError(sentence)) is None, "it may answer later by itself"


def test_what_nobody_knows_is_cut_to_a_line() -> None:
    assert reason_of(GenericError("a\nb")) == "a"
    assert len(reason_of(GenericError("x" * 9000))) == 300
    assert is_too_short(GenericError("416 Range Not Satisfiable"))
