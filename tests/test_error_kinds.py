"""Which errors are of one kind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_loopwatch.fingerprint.error_kinds import error_kind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("404 Client Error for url: https://h/x?try=1", "404 Client Error for url: https://h/x?try=2"),
        ("Unknown column 'name' in 'where clause'", "Unknown column 'd.id' in 'on clause'"),
        ("Table 'shop.dogs' doesn't exist", "Table 'shop.cats' doesn't exist"),
        ("Could not find [\"A (book)\"]. Similar: ['A', 'B']", "Could not find [C]. Similar: []"),
        ("No replacement was performed, `old` not in a/b.py", "No replacement was performed, `new` not in c.py/d"),
        ("line 3: syntax error near unexpected token", "line 17: syntax error near unexpected token"),
    ],
)
def test_a4_what_a_message_quotes_of_the_call_is_left_out(one, other):
    assert error_kind(one) == error_kind(other)
    assert error_kind(ValueError(one)) == error_kind(ValueError(other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Table 'a' doesn't exist", "Unknown column 'a'"),
        ("404", "500"),
        ("'a'", "'b'"),
        ("access denied", "access granted"),
        ("it doesn't match", "it does match"),
    ],
)
def test_other_reasons_are_other_kinds(one, other):
    assert error_kind(one) != error_kind(other)


def test_the_class_counts():
    assert error_kind(ValueError("x")) != error_kind(TypeError("x"))


def test_a_message_that_cannot_be_had_is_none():
    class RudeError(Exception):
        def __str__(self):
            raise RuntimeError

    assert error_kind(RudeError("a")) == error_kind(RudeError("b"))


def test_the_end_of_a_long_message_counts():
    frames = "in a frame of the traceback, " * 1000
    assert error_kind(frames + "first reason") != error_kind(frames + "second reason")
    assert error_kind(frames + "reason 1") == error_kind(frames + frames + "reason 2")


@given(st.text(st.characters(), max_size=200))
def test_it_never_raises_and_never_shows_the_message(message):
    kind = error_kind(message)
    assert len(kind) == 32
    assert set(kind) <= set("0123456789abcdef")
