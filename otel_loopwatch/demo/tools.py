"""The tools of the demo agents: a small shop, a wiki whose pages point at each other, a search without an end."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Mapping

import otel_loopwatch as lw

__all__ = ["EXPORT_CHECKS", "TOOLS"]

EXPORT_CHECKS = 9
"""How often an export is asked for before it is done."""

_ORDERS = {
    "ACME-24": "order 1187: 3 pallets, paid, handed to the carrier as parcel P-5521",
    "BOLT-07": "order 1203: 1 crate, paid, in the warehouse",
}
_CUSTOMERS = {"Acme": "ACME-24 (Acme Ltd.)", "Bolt": "BOLT-07 (Bolt & Sons)"}
_PARCELS = {"P-5521": "parcel P-5521 left the depot this morning and is due tomorrow"}
_PAGES = {
    "refunds": "Refunds: who may grant one is said on the page [escalation].",
    "escalation": "Escalation: for refunds, the page [refunds] holds.",
    "archive": "Archive: this page was replaced by the page [refunds].",
}

_lock = threading.Lock()
_numbers = itertools.count(1)
_checks: Counter[str] = Counter()


@lw.watch_tool(kind="read")
def find_orders(customer: str) -> str:
    """The open orders of a customer, by number."""
    return _ORDERS.get(customer, "no orders found")


@lw.watch_tool(kind="read")
def find_customer(name: str) -> str:
    """The number of a customer, by name."""
    return _CUSTOMERS.get(name, "no such customer")


@lw.watch_tool(kind="read")
def track_parcel(parcel: str) -> str:
    """Where a parcel is."""
    return _PARCELS.get(parcel, "no such parcel")


@lw.watch_tool(kind="read")
def read_page(page: str) -> str:
    """A page of the wiki."""
    return _PAGES.get(page, "no such page")


@lw.watch_tool(kind="read")
def search(query: str) -> str:
    """Search a library that has papers on everything, each of which leaves a question open."""
    topic, _, number = query.partition(", question ")
    following = int(number) + 1 if number.isdecimal() else 1
    return f"{sum(query.encode()) % 900} papers on {query}; the most cited leaves open: {topic}, question {following}"


@lw.watch_tool(kind="write")
def start_export(report: str) -> str:
    """Begin an export; the answer ends in the job's name."""
    return f"export of {report} began as job-{next(_numbers)}"


@lw.watch_tool(kind="poll")
def export_status(job: str) -> str:
    """How far an export is. Asked again until it is done, so it is declared a poll."""
    with _lock:
        _checks[job] += 1
        done = _checks[job] >= EXPORT_CHECKS
        if done:
            del _checks[job]
    return "done: 4,210 rows" if done else "running"


TOOLS: Mapping[str, Callable[..., str]] = {
    "find_orders": find_orders,
    "find_customer": find_customer,
    "track_parcel": track_parcel,
    "read_page": read_page,
    "search": search,
    "start_export": start_export,
    "export_status": export_status,
}
"""Every tool by the name that the models know."""
