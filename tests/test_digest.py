"""Digests of results and errors (DESIGN 5.4, 5.7, 5.12), masking, and what counts as an error of the infrastructure."""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime as dt
import io
import itertools
import socket
import time
import urllib.error
from decimal import Decimal
from http import HTTPStatus
from unittest.mock import MagicMock

import attrs
import numpy as np
import pandas as pd
import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from otel_loopwatch import errors
from otel_loopwatch.fingerprint import failures, masking
from otel_loopwatch.fingerprint.digest import (
    HEAD,
    MAX_MASKED,
    ResultDigest,
    StreamDigest,
    error_digest,
    error_text_digest,
    result_digest,
)
from otel_loopwatch.fingerprint.failures import register_infra_error
from otel_loopwatch.fingerprint.masking import mask

few = settings(max_examples=150, deadline=None)


def digest(value):
    return result_digest(value).digest


# --- masking ----------------------------------------------------------------------------------------------------------

SAME = [
    ("at 2024-05-01T10:00:00Z ok", "at 2025-11-30T23:59:59Z ok"),
    ("at 2024-05-01T10:00:00.123456+02:00 ok", "at 2024-05-01T10:00:01.654321-05:00 ok"),
    ("2024-05-01 10:00:00,123 INFO ok", "2024-05-02 11:10:10,456 INFO ok"),
    ("20240501T101010Z ok", "20240601T111111Z ok"),
    ("on 01/02/2024, ok", "on 03/04/2024, ok"),
    ("2024/05/01 ok", "2024/05/02 ok"),
    ('[15/Mar/2024:10:00:00 +0000] "GET /" 200', '[16/Apr/2024:10:00:01 +0000] "GET /" 200'),
    ("Mon May  1 10:00:00 2024 ok", "Tue May 12 11:00:01 2024 ok"),
    ("May 1, 2024 ok", "June 12, 2024 ok"),
    ("Date: Wed, 01 May 2024 10:00:00 GMT", "Date: Thu, 02 May 2024 11:00:00 GMT"),
    ("now 10:00 AM ok", "now 11:30 AM ok"),
    ("now 10:00:00 ok", "now 9:00:01 ok"),
    ("took 0:00:01.234 ok", "took 0:00:02.345 ok"),
    ("since 1714550400.123 ok", "since 1714550401.9 ok"),
    ("Ran 3 tests in 0.12s", "Ran 3 tests in 10.3s"),
    ("took 3 ms.", "took 14 ms."),
    ("took (1.2e-3 seconds)", "took (0.004 seconds)"),
    ("real 1m30.5s", "real 0m2s"),
    ("up 2h5m", "up 12h50m"),
    ("at 12.3MB/s", "at 800kB/s"),
    ("loading 45/100 [00:05<00:06, 8.9it/s]", "loading 45/100 [00:07<00:01, 12.9it/s]"),
    ("id 550e8400-e29b-41d4-a716-446655440000 ok", "id 00000000-1111-2222-3333-444444444444 ok"),
    ("id 550E8400-E29B-41D4-A716-446655440000 ok", "id AAAAAAAA-1111-2222-3333-444444444444 ok"),
    ("commit 3f2a1bc9d ok", "commit 9a8b7c6d5 ok"),
    ("<Obj object at 0x7f3a2c00d910>", "<Obj object at 0x7f3a2c11e820>"),
    ("pid 123 exited", "pid 4567 exited"),
    ("PID=123 exited", "PID=9 exited"),
    ("process id: 12 exited", "process id: 345 exited"),
    ("sshd[123]: ok", "sshd[456]: ok"),
    ("[1] 12345\ndone", "[1] 23456\ndone"),
    ("in /tmp/tmpabcd1234/x.py", "in /tmp/tmpwxyz_987/x.py"),
    ("in /tmp/tmp.aBcDeF12", "in /tmp/tmp.xYzWvU34"),
    ("in /var/folders/xy/a1b2c3/T/f", "in /var/folders/zz/q9q9q9/T/f"),
    ("in /tmp/pytest-of-me/pytest-12/x", "in /tmp/pytest-of-me/pytest-13/x"),
    (
        "  % Total\n100  1256  100  1256    0     0  10123      0 --:--:-- --:--:-- --:--:-- 10129\nok",
        "  % Total\n100  1256  100  1256    0     0   9871      0 --:--:-- --:--:-- --:--:--  9812\nok",
    ),
    ("a\r\nb", "a\nb"),
    ("a  b\t c\n", "a b c"),
    ('{"at":"2024-05-01T10:00:00Z","n":1}', '{"at":"2024-05-01T10:00:01Z","n":1}'),
    ({"at": "2024-05-01T10:00:00Z", "n": [1]}, {"n": [1], "at": "2024-05-02T10:00:00Z"}),
]

DIFFERENT = [
    ("line 12991: error", "line 12992: error"),
    ("3 passed in 0.1s", "4 passed in 0.1s"),
    ("progress 10 %", "progress 20 %"),
    ("foo.py:12:30: error", "foo.py:14:30: error"),
    ("version 1.2.3", "version 1.2.4"),
    ("port 8080", "port 8081"),
    ("total 22.55 USD", "total 22.56 USD"),
    ("order 9440686670", "order 9440686671"),
    ("order 12345678", "order 12345679"),
    ("reservation 3EMQJ6", "reservation 3EMQJ7"),
    ("5 apples", "6 apples"),
    ("a\nb", "b\na"),
    ("sum 5 m", "sum 6 m"),
    ("x10:20", "x10:30"),
    ("item[1] ok", "item[2] ok"),
    ("0x1f ok", "0x2f ok"),
    ("10:00:00", "10:00:01"),
    ("22.55", "22.56"),
    ("2024-05-01", "2024-05-02"),
    ("45/100 [00:05<00:06, 8.9it/s]", "46/100 [00:05<00:06, 8.9it/s]"),
    ({"n": 1}, {"n": 2}),
    ({"n": 1}, {"n": "1"}),
    ("in /tmp/out1.txt", "in /tmp/out2.txt"),
    ("in /tmp/tmpfile.txt", "in /tmp/tmpfiles.txt"),
    ("maybe 1 ok", "maybe 2 ok"),
    ("in May 1 ok", "in June ok"),
]


@pytest.mark.parametrize("one, other", SAME)
def test_what_changes_by_itself_is_masked(one, other):
    assert digest(one) == digest(other)


@pytest.mark.parametrize("one, other", DIFFERENT)
def test_another_answer_is_another_digest(one, other):
    assert digest(one) != digest(other)


@pytest.mark.parametrize("text", [text for pair in SAME + DIFFERENT for text in pair if isinstance(text, str)])
def test_what_is_masked_stays_as_it_is(text):
    assert mask(mask(text)) == mask(text)


VOLATILE = (
    r"3 0.5 12 ms s seconds May Mon 2024 10:00 10:00:01 2024-05-01T10:00:00Z pid # [1] abcd1234 0x7f3a2c00 tmpabcd1234"
)
VOLATILE += ' --:-- a é , ( B/s " : 1e5 AM 1st May, /proc/ pytest-'
volatile = st.sampled_from([*VOLATILE.split(), "\n", "\r\n"])


@given(
    st.lists(volatile, max_size=10).map(" ".join) | st.lists(volatile, max_size=8).map("".join) | st.text(max_size=40)
)
@few
@example("3 5 ms ms")
@example("May 1 May 1 May")
@example("1 May 1")
@example("pid pid 1 1")
def test_masking_is_idempotent(text):
    assert mask(mask(text)) == mask(text)


@given(
    st.lists(st.sampled_from(["done", "at", "ok,", "file.py", "7"]), min_size=1, max_size=6),
    st.datetimes(dt.datetime(1970, 1, 1)),  # noqa: DTZ001 - zones are not the point
    st.datetimes(dt.datetime(1970, 1, 1)),  # noqa: DTZ001
    st.sampled_from(
        [str, dt.datetime.isoformat, lambda moment: moment.isoformat() + "Z", "{:%H:%M:%S}".format, "{:%c}".format]
    ),
)
@few
def test_answers_that_differ_in_their_time_alone_are_equal(words, one, other, written):
    def answer(moment):
        return "result " + " ".join(words) + f" ({written(moment)}) " + " ".join(words)

    assert digest(answer(one)) == digest(answer(other))


def test_words_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(masking, "_MAX_STABLE", 3)
    assert mask("a1 b2 c3 d4 e5 f6") == "a1 b2 c3 d4 e5 f6"
    assert len(masking._stable) <= 3


@pytest.mark.parametrize(
    "text",
    [
        "ab" * 30_000,
        "1" * 60_000,
        "1a" * 30_000,
        "1." * 30_000,
        "1:" * 30_000,
        "[1" * 30_000,
        "a1 " * 20_000,
        "May 1 " * 10_000,
        "/var/folders/a" * 4_000 + "1",
        "-" * 60_000 + "--:--1",
        "0" * 60_000 + "-",
        "pid" + " " * 60_000 + "1",
        "pid 1" * 12_000,
        "1e" * 30_000,
        '"1,' * 20_000,
        "tmp" * 20_000 + "1",
        "10:00" * 10_000,
    ],
    ids=lambda text: text[:8],
)
def test_no_text_takes_more_than_linear_time(text):
    began = time.process_time()
    mask(text)
    assert time.process_time() - began < 1


# --- results ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Page:
    text: str
    at: str = ""


@attrs.define
class Item:
    text: str


class Answer(pydantic.BaseModel):
    text: str


class ToolMessage(pydantic.BaseModel):
    content: str
    tool_call_id: str
    id: str = ""
    status: str = "success"


class Handle:
    pass


class Broken:
    def __getattribute__(self, name):
        raise RuntimeError


@pytest.mark.parametrize(
    "one, same, other",
    [
        ("text", "text", "texts"),
        (b"text", bytearray(b"text"), b"texts"),
        (b"\xff\x00\x01\x02", b"\xff\x00\x01\x02", b"\xff\x00\x01\x03"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1.0}, {"a": 1}),
        ([1, 2, 3], (1, 2, 3), [1, 2, 4]),
        (Page("x", "10:00:00"), Page("x", "10:00:01"), Page("y", "10:00:00")),
        (Item("x"), Item("x"), Item("y")),
        (Answer(text="x"), Answer(text="x"), Answer(text="y")),
        (np.arange(5000), np.arange(5000), np.arange(5001)),
        (pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [1]}), pd.DataFrame({"a": [2]})),
        (1, 1.0, 2),
        (True, True, False),
        (
            ToolMessage(content="x", tool_call_id="1"),
            ToolMessage(content="x", tool_call_id="2"),
            ToolMessage(content="y", tool_call_id="1"),
        ),
    ],
)
def test_values_are_compared_by_what_they_hold(one, same, other):
    assert digest(one) == digest(same) != digest(other)
    assert len(bytes.fromhex(digest(one))) == 16


def test_bytes_inside_a_value_count_though_they_are_hashed():
    def blob(content, at="10:00:00"):
        return {"at": at, "image": [content], "array": np.array([content[0], 1]), "objects": {content}}

    assert digest(blob(b"ab")) == digest(blob(b"ab", "11:00:00"))
    assert digest(blob(b"ab")) != digest(blob(b"ac"))
    assert digest(np.array([1, 2])) != digest(np.array([1, 3]))
    assert digest({"a": np.arange(4).reshape(2, 2)}) != digest({"a": np.arange(1, 5).reshape(2, 2)})
    structured = [np.array([(1, number)], dtype=[("a", "i4"), ("b", "i4")]) for number in (1, 2)]
    assert digest(structured[0]) != digest(structured[1])


def test_values_without_a_letter_are_compared_as_they_are():
    assert digest(dt.date(2024, 5, 1)) != digest(dt.date(2024, 5, 2))
    assert digest([Decimal("1.5")]) != digest([Decimal("1.6")])
    assert digest({"on": dt.date(2024, 5, 1)}) == digest({"on": dt.date(2024, 5, 2)})


def test_an_error_status_of_a_message_counts():
    one = ToolMessage(content="x", tool_call_id="1")
    assert digest(one) != digest(one.model_copy(update={"status": "error"}))


async def coroutine():
    pass


def test_e9_of_streams_and_unknown_objects_there_is_no_digest_and_nothing_is_consumed(tmp_path):
    path = tmp_path / "f"
    path.write_text("content")
    generator = (number for number in range(3))
    pending = coroutine()
    with path.open() as file, socket.socket() as sock:
        values = [
            generator,
            iter([1]),
            file,
            io.StringIO("x"),
            sock,
            pending,
            Handle(),
            MagicMock(),
            map(str, []),
            Broken(),
        ]
        for value in values:
            assert result_digest(value) == ResultDigest(None, trivial=False, size=0)
            assert digest([1, {"a": value}]) is None
        assert file.read() == "content"
    pending.close()
    assert list(generator) == [0, 1, 2]


def test_a_text_that_speaks_of_an_unknown_object_is_a_text():
    assert digest('!object"x"') is not None
    assert digest({"a": '!object"x"', "b": "!object"}) is not None


@pytest.mark.parametrize("value", [None, True, 5, 5.5, Decimal("1.5"), 1j, "", "ok", " ok \n", [], {}, "[]", b"ok"])
def test_scalars_and_very_short_results_are_trivial(value):
    assert result_digest(value).trivial is True
    assert digest(value) is not None


@pytest.mark.parametrize("value", ["yes", "123", [1], {"a": 1}, " yes ", b"yes", Item("")])
def test_other_results_are_not(value):
    assert result_digest(value).trivial is False


def test_sizes():
    assert [result_digest(value).size for value in ("", "abc", "é", [1, 2], "x" * 100_000)] == [0, 3, 1, 5, 100_000]


def long_text(head="h", middle="m", tail="t", at="10:00:00"):
    return f"{head} {at} " + "a b " * 5_000 + f"{middle} " + "c d " * 15_000 + f" {at} {tail}"


def test_of_a_long_text_both_ends_are_masked_and_the_rest_counts_as_it_is():
    text = long_text()
    assert len(text) > MAX_MASKED
    assert digest(text) == digest(long_text(at="11:30:01"))
    assert len({digest(long_text(**change)) for change in ({}, {"head": "x"}, {"middle": "x"}, {"tail": "x"})}) == 4
    assert digest(long_text(middle="10:00:00")) != digest(long_text(middle="10:00:01"))


def test_a_long_text_is_not_cut_inside_a_time():
    def text(at):
        return "x" * (HEAD - 4) + f" {at} " + "y " * MAX_MASKED

    assert digest(text("10:00:00")) == digest(text("11:11:11"))


def test_a_long_text_without_white_space():
    assert digest("x" * 100_000) != digest("x" * 100_001)


@given(st.text(max_size=30) | st.binary(max_size=30) | st.lists(st.text(max_size=5)))
@few
def test_a_digest_is_one_and_the_same(value):
    assert result_digest(value) == result_digest(value)


# --- streams ----------------------------------------------------------------------------------------------------------


def streamed(items):
    stream = StreamDigest()
    for item in items:
        stream.update(item)
    return stream.result()


@given(st.text(max_size=60), st.lists(st.integers(0, 60), max_size=5))
@few
def test_a_text_in_pieces_is_the_text(text, cuts):
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    assert streamed(text[start:end] for start, end in itertools.pairwise(edges)) == result_digest(text)


def test_items_of_a_stream_are_set_apart():
    assert streamed([1, 2]).digest != streamed([12]).digest
    assert streamed([{"a": "10:00:00"}]).digest == streamed([{"a": "10:00:01"}]).digest
    assert streamed([b"ab", b"\xff"]).digest == streamed(["ab", "\\xff"]).digest


def test_a_stream_with_an_unknown_item_has_no_digest():
    assert streamed(["a", Handle(), "b"]).digest is None
    assert streamed(["a", Handle(), "b"]).size > 2


def test_an_item_that_cannot_be_read_is_survived(monkeypatch):
    monkeypatch.setattr("otel_loopwatch.fingerprint.digest.canonical_bytes", lambda value: 1 / 0)
    assert streamed([1]) == ResultDigest(None, trivial=False, size=0)
    assert result_digest([1]) == ResultDigest(None, trivial=False, size=0)


def test_an_empty_stream_is_trivial():
    assert streamed([]) == result_digest("")


def test_a_long_stream_holds_little():
    stream = StreamDigest()
    other = StreamDigest()
    for number in range(3_000):
        stream.update(f"{number} 10:00:00 " if number < 10 else "text " * 20)
        other.update(f"{number} 11:00:00 " if number < 10 else "text " * 20)
    assert sum(map(len, stream._pieces)) <= HEAD + 300
    assert stream.result() == other.result()
    other.update("more")
    assert stream.result() != other.result()


# --- errors -----------------------------------------------------------------------------------------------------------


class NotFoundError(Exception):
    pass


class BrokenError(Exception):
    def __str__(self):
        raise RuntimeError


def test_the_signature_of_an_error_is_its_class_and_its_masked_message():
    one = error_digest(ValueError("no row at 10:00:00"))
    assert one == error_digest(ValueError("no row at 11:00:00"))
    assert one.error_class == "ValueError"
    assert one.infra is False
    others = [
        ValueError("no column"),
        KeyError("no row at 10:00:00"),
        NotFoundError("no row at 10:00:00"),
        BrokenError(),
    ]
    assert len({one.signature, *(error_digest(other).signature for other in others)}) == 5
    assert error_digest(ValueError("line 3")).signature != error_digest(ValueError("line 4")).signature


def test_an_error_is_no_result():
    assert error_text_digest("ValueError: x").signature != digest("ValueError: x")


class WithStatus(Exception):
    def __init__(self, **facts):
        super().__init__("x")
        self.__dict__.update(facts)


class Holder:
    def __init__(self, **facts):
        self.__dict__.update(facts)


class RateLimitError(Exception):
    pass


class MyTimeout(RateLimitError):
    pass


class PropertyError(Exception):
    @property
    def status_code(self):
        raise RuntimeError


INFRA = [
    TimeoutError(),
    asyncio.TimeoutError(),  # noqa: UP041 - that they are one is the point
    concurrent.futures.TimeoutError(),
    TimeoutError("x"),
    ConnectionResetError(),
    BrokenPipeError(),
    WithStatus(status_code=429),
    WithStatus(status=503),
    WithStatus(code="500"),
    WithStatus(http_status=408),
    WithStatus(status_code=HTTPStatus.BAD_GATEWAY),
    WithStatus(response=Holder(status_code=504)),
    WithStatus(response=Holder(status=529)),
    WithStatus(error=Holder(code=500)),
    WithStatus(response={"ResponseMetadata": {"HTTPStatusCode": 503}, "Error": {"Code": "x"}}),
    WithStatus(response={"Error": {"Code": "ThrottlingException"}}),
    RateLimitError(),
    MyTimeout(),
    urllib.error.URLError(TimeoutError()),
]
OF_THE_CALL = [
    ValueError("503"),
    KeyError("429"),
    FileNotFoundError(),
    WithStatus(status_code=404),
    WithStatus(status_code=400, response=Holder(status_code=400)),
    WithStatus(code=5),
    WithStatus(code=True),
    WithStatus(code="E503"),
    WithStatus(response={"ResponseMetadata": {"HTTPStatusCode": 400}, "Error": {"Code": "ValidationException"}}),
    WithStatus(response={"ResponseMetadata": None}),
    WithStatus(status_code=MagicMock()),
    PropertyError(),
    urllib.error.URLError("unknown host"),
    AssertionError("timed out"),
]


@pytest.mark.parametrize("error", INFRA, ids=repr)
def test_b5_errors_of_the_infrastructure(error):
    assert error_digest(error).infra is True


@pytest.mark.parametrize("error", OF_THE_CALL, ids=range(len(OF_THE_CALL)))
def test_b5_errors_of_the_call(error):
    assert error_digest(error).infra is False


def chained(error, depth):
    for _ in range(depth):
        outer = ValueError("x")
        outer.__cause__ = error
        error = outer
    return error


def test_b5_causes_are_followed_three_deep():
    assert error_digest(chained(TimeoutError(), 3)).infra is True
    assert error_digest(chained(TimeoutError(), 4)).infra is False
    assert error_digest(chained(KeyError(), 2)).infra is False


@pytest.fixture
def classifier(monkeypatch):
    monkeypatch.setattr(failures, "_types", [])
    monkeypatch.setattr(failures, "_predicates", [])


def test_b5_the_classifier_can_be_extended(classifier, monkeypatch):
    stages = []
    monkeypatch.setattr(errors, "_on_fault", [stages.append])
    register_infra_error(NotFoundError)
    register_infra_error(lambda error: error.args[0] == "busy")
    assert error_digest(NotFoundError()).infra is True
    assert error_digest(ValueError("busy")).infra is True
    assert error_digest(ValueError("other")).infra is False
    assert stages == []
    assert error_digest(ValueError()).infra is False
    assert stages == ["infra_error"]


@pytest.mark.parametrize(
    "text, error_class, infra",
    [
        ("ValueError: bad", "ValueError", False),
        ("json.decoder.JSONDecodeError: bad", "JSONDecodeError", False),
        ("Error: order not found", "error", False),
        ("no such file", "error", False),
        ("", "error", False),
        ("KeyError('x')", "KeyError", False),
        ("output\nValueError: bad", "error", False),
        ("Traceback (most recent call last):\n  File x\nValueError: bad", "ValueError", False),
        ("Traceback (most recent call last):\n  a\nKeyError: 1\n\nDuring handling\n\nTypeError: x", "TypeError", False),
        ("Traceback (most recent call last):\n  File x", "error", False),
        ("Traceback (most recent call last):\n  f\nrequests.ReadTimeout: x", "ReadTimeout", True),
        ("openai.RateLimitError: Error code: 429", "RateLimitError", True),
        ("TimeoutError: x", "TimeoutError", True),
        ("429 Too Many Requests", "error", True),
        ("503 Service Unavailable", "error", True),
        ("HTTP 502", "error", True),
        ("Error code: 529 - overloaded_error", "error", True),
        ("rate limit exceeded, try again", "error", True),
        ("Service unavailable", "error", True),
        ("request timed out after 30 s", "error", True),
        ("upstream: connection timed out", "error", True),
        ("404 not found", "error", False),
        ("HTTP 404", "error", False),
        ("Command timed out after 30s", "error", False),
        ("curl: (7) Failed to connect to localhost: Connection refused", "error", False),
        ("FAILED test_x - AssertionError: 503 of 600", "error", False),
        ("exit code 1", "error", False),
        ("x" * 400 + " 429 too many requests", "error", False),
        ("ValueError: " + "x " * 50_000, "ValueError", False),
    ],
    ids=range(29),
)
def test_errors_that_are_known_as_text(text, error_class, infra):
    found = error_text_digest(text)
    assert (found.error_class, found.infra) == (error_class, infra)
    assert found == error_text_digest(text)


def test_the_message_of_a_text_counts():
    assert error_text_digest("ValueError: a") != error_text_digest("ValueError: b")
    assert error_text_digest("Error: a at 10:00:00") == error_text_digest("Error: a at 10:00:01")
