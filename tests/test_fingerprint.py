"""Fingerprints: field cases E-1 to E-4, E-7, E-8, the vectors, the binder and the key."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import hmac
import inspect
import json
import logging
import operator
import os
import subprocess
import sys
import typing
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, NamedTuple, Optional, TypedDict, TypeVar, Union

import attrs
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from otel_loopwatch import errors
from otel_loopwatch.fingerprint import (
    Binder,
    contexts,
    fingerprint,
    hash_key,
    is_process_key,
    keys,
    register_context_type,
)
from otel_loopwatch.fingerprint.contexts import is_context_annotation, is_context_class
from otel_loopwatch.fingerprint.keys import keyed_mac, mac

if TYPE_CHECKING:
    from somewhere import Deps, RequestContext, ToolRuntime

VECTORS = json.loads((Path(__file__).parent / "vectors" / "fingerprints.json").read_text(encoding="utf-8"))
HASH_SETS = json.loads((Path(__file__).parent / "data" / "traces.json").read_text())["hash"]


@pytest.fixture
def vector_key(monkeypatch):
    key = bytes.fromhex(VECTORS["key"])
    monkeypatch.setattr(keys, "_loaded", {"keyed": keys._Keyed(key, random=False, mac=keyed_mac(key))})
    return key


@pytest.fixture
def no_key(monkeypatch):
    """As in a process that has not hashed anything."""
    monkeypatch.delenv(keys.ENVIRONMENT_KEY, raising=False)
    monkeypatch.setattr(keys, "_loaded", {})


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(contexts, "_registered_types", set())
    monkeypatch.setattr(contexts, "_registered_names", set())
    yield
    contexts._known.clear()


@pytest.fixture
def faults(monkeypatch):
    stages = []
    monkeypatch.setattr(errors, "_on_fault", [stages.append])
    return stages


# --- the hash ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_vectors_hold(vector, vector_key):
    assert fingerprint(vector["tool"], vector["arguments"]) == vector["hash"]


@pytest.mark.parametrize("vector", VECTORS["vectors"], ids=lambda vector: vector["name"])
def test_the_vectors_can_be_checked_without_this_package(vector):
    message = f"[{json.dumps(vector['tool'], ensure_ascii=False)},{vector['canonical']}]"
    whole = hmac.new(bytes.fromhex(VECTORS["key"]), message.encode(), hashlib.sha256)
    assert whole.digest()[:16].hex() == vector["hash"]


@pytest.mark.parametrize("case", HASH_SETS, ids=operator.itemgetter("id"))
def test_the_hash_sets_of_the_field_cases(case):
    hashes = {fingerprint("tool", arguments) for arguments in case.get("same") or case["distinct"]}
    assert len(hashes) == (1 if "same" in case else len(case["distinct"]))


def test_tool_and_arguments_are_not_run_together():
    calls = [("ab", {"c": 1}), ("a", {"bc": 1}), ("a", {"c": 1}), ('a",{"c":1}', {}), ("", {"a": 1}), ("a", {})]
    assert len({fingerprint(*call) for call in calls}) == len(calls)


@given(st.text(max_size=5), st.text(max_size=5))
@settings(max_examples=100, deadline=None)
def test_tools_are_told_apart(one, other):
    assert (fingerprint(one, {}) == fingerprint(other, {})) == (
        fingerprint("t", {"x": one}) == fingerprint("t", {"x": other})
    )


@pytest.mark.parametrize(
    "arguments", [{}, {"a": 1}, {"a": 1.5}, {"a": [1, {"b": 2.0}]}, {"a": "é"}, {"a": object()}, {"a": {1}}, {1: 2}]
)
def test_a_hash_has_32_hexadecimal_characters(arguments):
    value = fingerprint("tool", arguments)
    assert len(bytes.fromhex(value)) == 16
    assert value == fingerprint("tool", dict(arguments))
    assert value == fingerprint("tool", ReadOnly(arguments))


class ReadOnly(Mapping):
    def __init__(self, held):
        self.held = held

    def __getitem__(self, key):
        return self.held[key]

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)


class Broken(ReadOnly):
    def __getitem__(self, key):
        raise RuntimeError


def test_arguments_that_cannot_be_read_are_survived(faults):
    assert len(fingerprint("t", Broken({"a": 1}), ignore_args=("a",))) == 32
    assert faults == ["fingerprint"]


@pytest.mark.parametrize("tool", [None, 5, b"x", object()])
def test_a_tool_without_a_name_is_survived(tool):
    assert len(fingerprint(tool, {"a": 1})) == 32


# --- E-2: what does not count -----------------------------------------------------------------------------------------


def test_e2_ignored_arguments():
    def call(**extra):
        return {"cmd": "ls", "request_id": str(uuid.uuid4()), "now": object(), **extra}

    ignore = ("request_id", "now")
    hashes = {fingerprint("exec", call(), ignore_args=ignore) for _ in range(6)}
    assert len(hashes) == 1
    assert fingerprint("exec", {"cmd": "ls"}) in hashes
    assert fingerprint("exec", {"cmd": "pwd"}) not in hashes
    assert len({fingerprint("exec", call()) for _ in range(6)}) == 6


@dataclasses.dataclass
class Meta:
    trace_id: str
    user: str = "u"


class Request(pydantic.BaseModel):
    trace_id: str
    user: str = "u"


@attrs.define
class Header:
    trace_id: str
    user: str = "u"


@pytest.mark.parametrize(
    "meta",
    [
        lambda trace, user: {"trace_id": trace, "user": user},
        lambda trace, user: [{"trace_id": trace, "user": user}, {"user": user}],
        Meta,
        lambda trace, user: Request(trace_id=trace, user=user),
        Header,
    ],
)
def test_e2_dotted_paths(meta):
    def digest(trace, user):
        return fingerprint("t", {"meta": meta(trace, user)}, ignore_args=("meta.trace_id",))

    assert digest("1", "u") == digest("2", "u") != digest("1", "v")


def test_e2_paths_that_lead_nowhere_change_nothing():
    arguments = {"a": 1, "b": {"c": 2}, "x.y": 1}
    assert fingerprint("t", arguments, ignore_args=("z", "a.b", "b.d", "b.c.d", "")) == fingerprint("t", arguments)
    assert fingerprint("t", arguments, ignore_args=("x.y",)) == fingerprint("t", {"a": 1, "b": {"c": 2}})
    assert arguments == {"a": 1, "b": {"c": 2}, "x.y": 1}


def test_e2_pages_count():
    assert len({fingerprint("list", {"cursor": cursor, "offset": 1, "page": 1}) for cursor in "abc"}) == 3


def test_a_loop_key_of_names():
    assert fingerprint("t", {"a": 1, "b": 2}, loop_key=("a",)) == fingerprint("t", {"a": 1})
    assert fingerprint("t", {"b": 2}, loop_key=("a",)) == fingerprint("t", {})


def test_a_loop_key_that_is_a_function():
    def key(arguments):
        return arguments["url"].partition("?")[0]

    assert fingerprint("t", {"url": "h?1"}, loop_key=key) == fingerprint("t", {"url": "h?2"}, loop_key=key)
    assert fingerprint("t", {"url": "h?1"}, loop_key=key) != fingerprint("t", {"url": "i?1"}, loop_key=key)


def test_a_loop_key_that_raises_is_reported_and_all_arguments_count(faults):
    def key(arguments):
        arguments.clear()
        raise KeyError(1)

    assert fingerprint("t", {"a": 1}, loop_key=key) == fingerprint("t", {"a": 1})
    assert faults == ["loop_key"]


# --- E-8: the key -----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=200), st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_e8_the_hash_is_hmac_sha_256(key, message):
    assert keyed_mac(key)(message) == hmac.new(key, message, hashlib.sha256).hexdigest()[:32]


def test_e8_a_dictionary_of_pins_finds_nothing_without_the_key(no_key):
    exported = fingerprint("login", {"pin": "1234"})
    guesses = {hashlib.sha256(f'["login",{{"pin":"{pin:04}"}}]'.encode()).hexdigest()[:32] for pin in range(10_000)}
    guesses |= {keyed_mac(b"")(f'["login",{{"pin":"{pin:04}"}}]'.encode()) for pin in range(10_000)}
    assert exported not in guesses
    assert exported == keyed_mac(hash_key())(b'["login",{"pin":"1234"}]')


def test_e8_a_key_of_the_environment(monkeypatch, no_key, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setenv(keys.ENVIRONMENT_KEY, "s3cret é")
    assert hash_key() == "s3cret é".encode()
    assert is_process_key() is False
    assert fingerprint("t", {}) == keyed_mac("s3cret é".encode())(b'["t",{}]')
    assert caplog.records == []


@pytest.mark.parametrize("configured", [None, ""])
def test_e8_a_random_key_is_said_once(monkeypatch, no_key, caplog, configured):
    if configured is not None:
        monkeypatch.setenv(keys.ENVIRONMENT_KEY, configured)
    caplog.set_level(logging.INFO)
    assert fingerprint("t", {}) == fingerprint("t", {})
    assert is_process_key() is True
    assert len(hash_key()) == 32
    (record,) = caplog.records
    assert keys.ENVIRONMENT_KEY in record.getMessage()
    assert hash_key().hex() not in record.getMessage()


def test_e8_each_process_has_a_key_of_its_own():
    code = "from otel_loopwatch.fingerprint import fingerprint; print(fingerprint('t', {}))"
    environment = {name: value for name, value in os.environ.items() if name != keys.ENVIRONMENT_KEY}
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    assert runs[0].stdout != runs[1].stdout


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_the_key(no_key):
    expected = fingerprint("t", {"a": 1})
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, fingerprint("t", {"a": 1}).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() == expected
    os.close(reader)
    os.close(writer)


def test_the_first_hashes_of_two_threads_agree(no_key, monkeypatch):
    other = keys._Keyed(b"other", random=True, mac=keyed_mac(b"other"))

    class Raced(dict):
        def setdefault(self, name, value):
            return super().setdefault(name, other)

    monkeypatch.setattr(keys, "_loaded", Raced())
    assert mac(b"x") == keyed_mac(b"other")(b"x")
    assert hash_key() == b"other"


# --- E-4: how it was called -------------------------------------------------------------------------------------------


def bound(fn, *args, **kwargs):
    return Binder(fn).bind(args, kwargs)


def plain(q, limit=10):
    pass


def positional(a, /, b=2):
    pass


def keyword_only(a, *, b, c=3):
    pass


def variadic(a, *rest, b=2, **extra):
    pass


def open_ended(a, **extra):
    pass


def shadowing(a, /, **extra):
    pass


async def asynchronous(q, limit=10):
    pass


def generating(q, limit=10):
    yield q


class Service:
    def method(self, q, limit=10):
        pass

    @classmethod
    def of_class(cls, q, limit=10):
        pass

    @staticmethod
    def static(q, limit=10):
        pass

    def __call__(self, q, limit=10):
        pass

    def loose(*args, **kwargs):
        pass


def test_e4_however_it_was_called():
    calls = [(("x",), {}), ((), {"q": "x"}), ((), {"q": "x", "limit": 10}), (("x", 10), {}), (("x",), {"limit": 10})]
    for fn in (
        plain,
        asynchronous,
        generating,
        Service().method,
        Service.of_class,
        Service.static,
        Service(),
        functools.partial(plain),
        functools.wraps(plain)(lambda *args, **kwargs: None),
    ):
        binder = Binder(fn)
        assert [binder.bind(*call) for call in calls] == [{"q": "x", "limit": 10}] * 5
        assert len({fingerprint("f", binder.bind(*call)) for call in calls}) == 1


@pytest.mark.parametrize(
    "fn, args, kwargs, expected",
    [
        (positional, (1,), {}, {"a": 1, "b": 2}),
        (positional, (1, 3), {}, {"a": 1, "b": 3}),
        (keyword_only, (1,), {"b": 2}, {"a": 1, "b": 2, "c": 3}),
        (variadic, (1, 2, 3), {"b": 4, "x": 5}, {"a": 1, "rest": (2, 3), "b": 4, "extra": {"x": 5}}),
        (variadic, (1,), {}, {"a": 1, "rest": (), "b": 2, "extra": {}}),
        (open_ended, (), {"a": 1, "x": 2}, {"a": 1, "x": 2}),
        (open_ended, (), {"a": 1, "extra": 2}, {"a": 1, "extra": 2}),
        (shadowing, (1,), {"a": 2}, {"a": 1, "extra": {"a": 2}}),
        (functools.partial(plain, limit=5), ("x",), {}, {"q": "x", "limit": 5}),
        (functools.partial(plain, "x"), (), {"limit": 5}, {"limit": 5}),
        (lambda: None, (), {}, {}),
        (Meta, ("t",), {}, {"trace_id": "t", "user": "u"}),
    ],
)
def test_e4_every_kind_of_parameter(fn, args, kwargs, expected):
    assert Binder(fn).bind(args, kwargs) == expected


@pytest.mark.parametrize(
    "fn, args, kwargs",
    [
        (plain, (), {}),
        (plain, (1, 2, 3), {}),
        (plain, (1,), {"q": 1}),
        (plain, (1,), {"other": 1}),
        (positional, (), {"a": 1}),
        (keyword_only, (1, 2), {}),
        (keyword_only, (1,), {}),
    ],
)
def test_e4_a_call_that_cannot_be_bound(fn, args, kwargs):
    assert Binder(fn).bind(args, kwargs) is None
    with pytest.raises(TypeError, match=fn.__name__):
        fn(*args, **kwargs)


def test_e4_self_and_cls_are_dropped():
    assert Binder(Service.method, drop_first=True).bind((Service(), "x"), {}) == {"q": "x", "limit": 10}
    assert Binder(Service.of_class.__func__, drop_first=True).bind((Service, "x"), {}) == {"q": "x", "limit": 10}
    assert Binder(Service.loose, drop_first=True).bind((Service(), "x"), {"y": 1}) == {
        "args": ("x",),
        "kwargs": {"y": 1},
    }
    assert Binder(lambda *, q: None, drop_first=True).bind((), {"q": 1}) == {"q": 1}


@pytest.mark.parametrize("fn", [dict, max, print], ids=["dict", "max", "print"])
def test_e4_a_callable_without_a_signature(fn, monkeypatch):
    def no_signature(_):
        raise ValueError

    monkeypatch.setattr(inspect, "signature", no_signature)
    assert bound(fn, 1, a=2) == {"args": [1], "kwargs": {"a": 2}}
    assert Binder(fn, drop_first=True).bind((1, 2), {}) == {"args": [2], "kwargs": {}}


def test_e4_a_parameter_that_no_source_text_can_have():
    def fn(*args):
        pass

    parameter = inspect.Parameter("from", inspect.Parameter.POSITIONAL_ONLY, default=1)
    fn.__signature__ = inspect.Signature([parameter])
    assert bound(fn, 2) == {"from": 2}
    assert bound(fn) == {"from": 1}
    assert bound(fn, 1, 2) is None


NOT_A_NUMBER = float("nan")


def test_e4_defaults_are_taken_by_identity():
    sentinel = object()

    def fn(a=sentinel, *, b=NOT_A_NUMBER):
        pass

    result = bound(fn)
    assert result["a"] is sentinel
    assert result["b"] is NOT_A_NUMBER


@given(st.lists(st.integers(), max_size=4), st.dictionaries(st.sampled_from("abcdqx"), st.integers(), max_size=4))
@settings(max_examples=150, deadline=None)
def test_e4_what_is_bound_is_what_inspect_binds(args, kwargs):
    for fn in (plain, positional, keyword_only, variadic, open_ended, shadowing):
        try:
            fn(*args, **kwargs)
        except TypeError:
            assert bound(fn, *args, **kwargs) is None
            continue
        arguments = inspect.signature(fn).bind(*args, **kwargs)
        arguments.apply_defaults()
        expected = dict(arguments.arguments)
        if fn is open_ended:
            expected |= expected.pop("extra")
        assert bound(fn, *args, **kwargs) == expected


# --- E-7: injected context --------------------------------------------------------------------------------------------

T = TypeVar("T")


class RunContextWrapper(Generic[T]):
    pass


class ToolContext(RunContextWrapper[T]):
    pass


@dataclasses.dataclass
class RunContext(Generic[T]):
    usage: int = 0


@dataclasses.dataclass
class ToolRuntimeStub:
    state: dict = dataclasses.field(default_factory=dict)


ToolRuntimeStub.__name__ = ToolRuntimeStub.__qualname__ = "ToolRuntime"


class InjectedState:
    def __init__(self, field=None):
        self.field = field


class InjectedToolCallId:
    pass


class RunnableConfig(TypedDict, total=False):
    tags: list[str]


class Context:
    """As of MCP."""


class ContextModel(pydantic.BaseModel):
    text: str = ""


ContextModel.__name__ = "Context"


class CallbackManagerForToolRun:
    pass


class Settings(NamedTuple):
    x: int


CONTEXTS = {
    "class": RunContextWrapper,
    "subclass": ToolContext,
    "generic": RunContextWrapper[int],
    "generic dataclass": RunContext[int],
    "optional": Optional[RunContext[int]],  # noqa: UP045 - as people write it
    "union": Union[RunContext[int], None],  # noqa: UP007 - the same
    "new union": RunContext[int] | None,
    "annotated": Annotated[RunContext[int], "the context"],
    "optional annotated": Annotated[RunContext[int] | None, "the context"],
    "marker": Annotated[dict, InjectedState],
    "marker instance": Annotated[dict, InjectedState("messages")],
    "call id": Annotated[str, InjectedToolCallId],
    "typed dict": RunnableConfig,
    "common name": Context,
    "callbacks": CallbackManagerForToolRun | None,
    "string": "RunContextWrapper",
    "string, generic": "RunContextWrapper[Deps]",
    "string, optional": "Optional[RunContextWrapper[Deps]]",
    "string, union": "RunContextWrapper[Deps] | None",
    "string, dotted": "agents.RunContextWrapper[Deps]",
    "string, annotated": "Annotated[dict, InjectedState]",
    "string, marker instance": "typing.Annotated[dict, prebuilt.InjectedState('messages')]",
    "string in a string": "Optional['RunContext[Deps]']",
    "string, common name": "fastmcp.Context",
    "forward reference": Optional["ToolRuntime"],
}
DATA = {
    "none": inspect.Parameter.empty,
    "str": str,
    "any": Any,
    "list of them": list[RunContextWrapper],
    "callable": typing.Callable[[RunContextWrapper], str],
    "model with a common name": ContextModel,
    "model": Request,
    "named tuple": Settings,
    "literal": typing.Literal["Context"],
    "described": Annotated[str, "Context"],
    "string, described": "Annotated[str, 'RunContext']",
    "string, list": "list[RunContextWrapper]",
    "string, resolved to data": "Request",
    "string, model": "Meta",
    "no expression": "def x",
    "call": "1 + 1",
    "empty": "",
}


@pytest.mark.parametrize("annotation", CONTEXTS.values(), ids=CONTEXTS)
def test_e7_injected_parameters_are_found_by_their_annotation(annotation):
    assert is_context_annotation(annotation, globals()) is True

    def fn(q, ctx=None):
        pass

    fn.__annotations__["ctx"] = annotation
    binder = Binder(fn)
    assert binder.bind(("x", object()), {}) == binder.bind(("x",), {"ctx": 1}) == {"q": "x"}
    assert binder.dropped == {"ctx"}


@pytest.mark.parametrize("annotation", DATA.values(), ids=DATA)
def test_e7_data_is_kept(annotation):
    assert is_context_annotation(annotation, globals()) is False


def test_e7_postponed_annotations_that_cannot_be_evaluated():
    def tool(ctx: RequestContext[Deps], q: str, *, runtime: ToolRuntime | None = None) -> str:
        return q

    assert Binder(tool).bind((object(), "x"), {"runtime": 1}) == {"q": "x"}
    assert Binder(functools.partial(tool, object())).bind(("x",), {}) == {"q": "x"}
    assert Binder(functools.wraps(tool)(lambda *args, **kwargs: None)).bind((object(), "x"), {}) == {"q": "x"}


def test_e7_a_local_class_is_resolved():
    class Request(pydantic.BaseModel):
        text: str

    def tool(q: Request) -> str:
        return q.text

    def other(q: Request) -> type:
        return Request

    assert Binder(other).bind((Request(text="x"),), {}) == {"q": Request(text="x")}
    # Nothing in the function refers to the class, so that its name is all there is: a common one counts as injected.
    assert Binder(tool).bind((1,), {}) in ({}, {"q": 1})


def test_e7_injected_values_do_not_count():
    def digest(context):
        return fingerprint("t", {"q": "x", "anything": context, "more": [1]})

    expected = fingerprint("t", {"q": "x", "more": [1]})
    values = [
        RunContextWrapper(),
        ToolContext(),
        RunContext(1),
        RunContext(2),
        ToolRuntimeStub({"messages": [1]}),
        Context(),
    ]
    assert {digest(value) for value in values} == {expected}
    assert digest(Request(trace_id="1")) != expected


def test_e7_a_context_type_can_be_registered(registered):
    class Mine:
        pass

    class Child(Mine):
        pass

    @dataclasses.dataclass
    class Named:
        x: int = 0

    expected = fingerprint("t", {})
    assert fingerprint("t", {"a": Child()}) != expected
    register_context_type(Mine)
    assert fingerprint("t", {"a": Child()}) == expected
    assert is_context_annotation(Child | None, {}) is True
    assert fingerprint("t", {"a": Named()}) != expected
    register_context_type("Named")
    assert fingerprint("t", {"a": Named()}) == expected
    assert is_context_annotation("app.Named | None", {}) is True
    register_context_type(f"{__name__}.Header")
    assert fingerprint("t", {"a": Header("x")}) == expected
    assert is_context_annotation("Header", globals()) is True


def test_e7_classes_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(contexts, "_MAX_KNOWN", 2)
    for _ in range(5):
        assert is_context_class(type("Passing", (), {})) is False
    assert len(contexts._known) <= 2


class Hostile(type):
    def __hash__(cls):
        raise RuntimeError


def test_e7_a_hostile_class_is_survived():
    kind = Hostile("Kind", (), {})
    assert is_context_class(kind) is False
    assert len(fingerprint("t", {"a": kind(), "b": [kind()]})) == 32


def test_an_empty_cell_is_survived():
    def outer():
        def tool(q: late):
            return late

        found = Binder(tool).bind((1,), {})
        late = int
        return found, late

    assert outer()[0] == {"q": 1}
