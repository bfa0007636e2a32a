"""Calls and their outcomes, reduced to hashes that can be compared: what the run remembers instead of content.

Arguments: :mod:`~.binder` (by parameter name, defaults applied, without injected contexts: :mod:`~.contexts`) ->
:mod:`~.canonical` (RFC 8785, with :mod:`~.tagged` values that JSON does not know) -> :mod:`~.arguments` (a hash, with
the key of :mod:`~.keys`).

Outcomes: :mod:`~.masking` (times, ids, addresses) -> :mod:`~.digest`; errors besides by :mod:`~.error_kinds` and
:mod:`~.failures` (whose fault). Whether a call would change something: :mod:`~.writes`, for commands and code
:mod:`~.statements`.
"""

from otel_loopwatch.fingerprint.arguments import fingerprint
from otel_loopwatch.fingerprint.binder import Binder
from otel_loopwatch.fingerprint.contexts import register_context_type
from otel_loopwatch.fingerprint.digest import (
    ErrorDigest,
    ResultDigest,
    StreamDigest,
    error_digest,
    error_text_digest,
    result_digest,
)
from otel_loopwatch.fingerprint.error_kinds import error_kind
from otel_loopwatch.fingerprint.failures import register_infra_error
from otel_loopwatch.fingerprint.keys import hash_key, is_process_key
from otel_loopwatch.fingerprint.writes import looks_like_write

__all__ = [
    "Binder",
    "ErrorDigest",
    "ResultDigest",
    "StreamDigest",
    "error_digest",
    "error_kind",
    "error_text_digest",
    "fingerprint",
    "hash_key",
    "is_process_key",
    "looks_like_write",
    "register_context_type",
    "register_infra_error",
    "result_digest",
]
