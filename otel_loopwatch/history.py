"""What a detector may look at: :class:`History`, one frozen look at a run.

:mod:`otel_loopwatch.run_state` says how calls change it.

The words used here:

* A *round* is a call together with the identical ones made beside it: in the same model turn (the same non-zero step),
  or while it was in flight. A round counts once, and every call of it is judged like its first. From the ninth on, each
  identical call is a round of its own, so that a fan-out of identical calls is not free.
* The *outcome* of a call is its digest. Outcomes of calls whose result cannot be compared are unequal to everything.
* An *effective write* settled without error, may change something, and had not succeeded before in this run. It opens a
  new *epoch*: the same call may well have another outcome now.
* A *silent* call changed nothing and told nothing (no write, a trivial result, made once), like ``think``. It does not
  come between two calls.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

from otel_loopwatch.calls import Trip, Used

__all__ = ["QUIET", "Entry", "History", "Item", "Streak", "Streaks"]


class Entry(NamedTuple):
    """What the run knows of one fingerprint. Counts are of rounds made before the one that is judged.

    Attributes:
        calls: Rounds made.
        counted: Of these, the ones that did not end in an error of the infrastructure.
        same: Rounds with the latest outcome, one after the other, since the last effective write.
        kept: The same, whatever was written in between.
        row: Rounds made with nothing else in between, whatever the outcome.
        infra: Errors of the infrastructure in a row.
        failed: True where the latest outcome is an error.
        error_class: Class of that error.
        reopened: True where the model was hinted at this call and has made an effective write since, so that its
            outcome may be another one now.
    """

    calls: int = 0
    counted: int = 0
    same: int = 0
    kept: int = 0
    row: int = 0
    infra: int = 0
    failed: bool = False
    error_class: str | None = None
    reopened: bool = False


class Streak(NamedTuple):
    """Calls in a row that ended alike, whatever their arguments.

    Attributes:
        length: How many.
        signatures: What they share: one or two outcomes or error signatures, the latest last.
        tail: How many of the last ones share the latest signature.
        refused: Calls answered with a hint while the streak lasted.
        hinted_at: ``length`` when the last of these was refused; 0 for none. While no more is known than then, the next
            call is let through: it may be the one that ends the streak.
        error_class: Class of the latest error.
    """

    length: int = 0
    signatures: tuple[Any, ...] = ()
    tail: int = 0
    refused: int = 0
    hinted_at: int = 0
    error_class: str | None = None


class Item(NamedTuple):
    """One call of the sequence in which cycles are looked for.

    Attributes:
        call: Its fingerprint, or what the ledger keeps in its place.
        outcome: The same for its outcome; like no other where the outcome is unknown.
        step: The model turn, 0 where unknown.
        tool: Name of the tool.
    """

    call: Any
    outcome: Any
    step: int
    tool: str


class Streaks(NamedTuple):
    """The streaks that a call may go on with.

    Attributes:
        errors: Errors in a row of its tool since the last effective write, of at most two outcomes.
        error_kinds: The same of at most two signatures, which tell less: messages that quote different arguments agree.
        run_errors: Errors in a row of the whole run, of at most two tools and outcomes.
        answers: Calls of its tool in a row with the same outcome. Errors, writes and trivial results are left out.
        infra: Errors of the infrastructure in a row of its tool.
    """

    errors: Streak = Streak()
    error_kinds: Streak = Streak()
    run_errors: Streak = Streak()
    answers: Streak = Streak()
    infra: Streak = Streak()


QUIET = Streaks()
"""No streak at all, which is what nearly every call sees."""


class History(NamedTuple):
    """One look at the ledger: everything that the verdict on one call may depend on.

    Attributes:
        used: Usage of the run, then of its ancestors, this call's reservation included.
        entry: What the run knows of this call's fingerprint, this call not included.
        tool_calls: Calls of this tool in this run, this one included.
        hints: Hints given so far, per subject of the finding.
        tripped: Set where the run or an ancestor has been aborted.
        duplicate: True where this call id had been reserved before.
        window: The last settled or hinted calls, oldest first, those of one turn in a fixed order. Empty for a call
            made fewer than two times before, which no cycle can have as its next member.
        streaks: Calls in a row that ended alike.
        key: What :attr:`Item.call` is for the call that is judged.
    """

    used: tuple[Used, ...]
    entry: Entry
    tool_calls: int
    hints: Mapping[str, int]
    tripped: Trip | None
    duplicate: bool
    window: tuple[Item, ...] = ()
    streaks: Streaks = QUIET
    key: Hashable = None
