"""Is an error one of the infrastructure, or of the call?

A busy server is worth another attempt, a wrong argument is not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final

from otel_loopwatch.errors import report_fault

__all__ = ["is_infra", "is_infra_status", "is_infra_text", "register_infra_error"]

InfraPredicate = Callable[[BaseException], bool]

MAX_CAUSES: Final = 3
"""How many ``__cause__`` are followed."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Classes of HTTP clients, model providers, cloud SDKs and gRPC; bare names, so that nothing has to be imported.
_NAMES: Final = _words(
    """RateLimitError RateLimitExceeded RateLimited RateLimitException TooManyRequests TooManyRequestsError
    TooManyRequestsException ThrottlingException ThrottledException Throttled ThrottlingError RequestLimitExceeded
    ProvisionedThroughputExceededException ResourceExhausted OverloadedError ServiceUnavailable
    ServiceUnavailableError ServiceUnavailableException Unavailable InternalServerError BadGateway BadGatewayError
    GatewayTimeout GatewayTimeoutError APITimeoutError APIConnectionError APIConnectionTimeoutError DeadlineExceeded
    ReadTimeout ConnectTimeout WriteTimeout PoolTimeout TimeoutException Timeout ReadTimeoutError ConnectTimeoutError
    RequestTimeout RequestTimeoutError ConnectError ConnectionClosed ConnectionClosedError RemoteProtocolError
    EndpointConnectionError NewConnectionError MaxRetryError ServerDisconnectedError ServerTimeoutError
    ClientConnectorError ClientConnectionError ConnectionTimeout ConnectionTimeoutError RemoteDisconnected
    IncompleteRead ChunkedEncodingError"""
)

_STATUS_ATTRIBUTES: Final = ("status_code", "status", "http_status", "statusCode", "code")
_THROTTLING_CODES: Final = _words(
    """Throttling ThrottlingException ThrottledException RequestLimitExceeded TooManyRequestsException SlowDown
    ServiceUnavailable RequestTimeout InternalError InternalServerError
    ProvisionedThroughputExceededException"""
)

_TEXT_CLASSES: Final = _NAMES | {"TimeoutError", "ConnectionError", "ConnectionResetError", "ConnectionAbortedError"}
# What clients and proxies say of themselves. A tool's own 404, a refused local port or a test that mentions a timeout
# is none of it, hence the beginning of the text alone, and whole phrases.
_TEXT: Final = re.compile(
    r"""
    \b429\b\W{0,3}too\ many\ requests | \btoo\ many\ requests\b
    | \brate[ _-]?limit(?:ed|s)?\b(?!\ (?:test|config|setting))
    | \b(?:http|status|code|error)[ :=/]{1,3}(?:code[ :=]{1,2})?(?:408|429|50[0-4]|52\d)\b
    | \b500\W{1,3}internal\ server\ error | \b502\W{1,3}bad\ gateway | \b503\W{1,3}service\ unavailable
    | \b504\W{1,3}gateway\ time-?out | \b408\W{1,3}request\ time-?out
    | \boverloaded_error\b | \bconnection\ reset\ by\ peer\b
    | ^(?:error:\ )?(?:service\ (?:is\ )?(?:temporarily\ )?unavailable|bad\ gateway|gateway\ time-?out
      |internal\ server\ error)\b
    | \b(?:request|connection|connect|read|api\ call|upstream|gateway|socket|handshake)(?:\ operation)?\ (?:has\ )?
      timed\ out\b
    """,
    re.IGNORECASE | re.VERBOSE,
)
MAX_TEXT: Final = 300

_types: list[type[BaseException]] = []
_predicates: list[InfraPredicate] = []


def register_infra_error(error: type[BaseException] | InfraPredicate) -> None:
    """Let an error count as one of the infrastructure: not as a repetition, but towards ``max_infra_errors``.

    Args:
        error: A class of exceptions, or a function that is given the exception and returns True for such a one. It is
            called on every error of a tool that is not known already; where it raises, that counts as False.
    """
    if isinstance(error, type):
        _types.append(error)
    else:
        _predicates.append(error)


def is_infra_status(status: int) -> bool:
    """True for the HTTP status of a server that fails, is overloaded, or has waited for too long."""
    return status in (408, 429) or 500 <= status <= 599


def is_infra(error: BaseException) -> bool:
    """True for 408, 429, 5xx, timeouts, lost connections, and what was registered; also as a cause. Never raises."""
    current: BaseException | None = error
    for _ in range(MAX_CAUSES + 1):
        if current is None:
            return False
        if _is_infra(current):
            return True
        current = _attribute(current, "__cause__")
    return False


def _is_infra(error: BaseException) -> bool:
    if isinstance(error, tuple(_types)) or any(_holds(predicate, error) for predicate in _predicates):
        return True
    statuses = list(_statuses(error))
    if statuses:
        return any(map(is_infra_status, statuses))
    if isinstance(error, TimeoutError | ConnectionError):
        return True
    if any(kind.__name__ in _NAMES for kind in type(error).__mro__):
        return True
    # urllib wraps the error of the socket.
    reason = _attribute(error, "reason")
    return isinstance(reason, TimeoutError | ConnectionError)


def _holds(predicate: InfraPredicate, error: BaseException) -> bool:
    try:
        return bool(predicate(error))
    except Exception as fault:  # noqa: BLE001 - code of the user's
        report_fault("infra_error", fault)
        return False


def _statuses(error: BaseException) -> Iterator[int]:
    """The HTTP statuses that an exception carries, in the shapes that clients have."""
    response = _attribute(error, "response")
    for holder in (error, response, _attribute(error, "error")):
        if holder is None:
            continue
        for name in _STATUS_ATTRIBUTES:
            status = _status(_attribute(holder, name))
            if status is not None:
                yield status
    if type(response) is dict:
        # botocore
        metadata, details = response.get("ResponseMetadata"), response.get("Error")
        status = _status(metadata.get("HTTPStatusCode")) if type(metadata) is dict else None
        if status is not None:
            yield status
        if type(details) is dict and details.get("Code") in _THROTTLING_CODES:
            yield 429


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - a property of the user's
        return None


def _status(value: Any) -> int | None:
    """*value* as an HTTP status, where it is one."""
    if isinstance(value, str) and len(value) == 3 and value.isdecimal():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
        return int(value)
    return None


def is_infra_text(error_class: str, text: str) -> bool:
    """True where the text of an error says that a server or a connection failed.

    Args:
        error_class: The class that the text names, if any.
        text: Its first 300 characters are looked at, of a traceback the last line.
    """
    if error_class in _TEXT_CLASSES:
        return True
    said = text.strip()
    if said.startswith("Traceback ("):
        said = said[-MAX_TEXT:].rpartition("\n")[2]
    return _TEXT.search(said[:MAX_TEXT]) is not None
