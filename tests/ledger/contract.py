"""What every ledger must do (otel_loopwatch/ledger/__init__.py). The tests of an implementation inherit it."""

from __future__ import annotations

import asyncio
import threading
from decimal import Decimal

import pytest

from otel_loopwatch.calls import Settled, StopReason, ToolCall, Trip, Usage, Used


def call(number: int = 1, *, tool: str = "t", args: str = "a", **facts) -> ToolCall:
    return ToolCall(f"c{number}", tool, f"{tool}:{args}", float(number), **facts)


OK = Settled("d")
USD = Decimal("0.01")


class Contract:
    """Subclasses give a fixture ``ledger``."""

    @pytest.fixture
    def run(self, ledger):
        return ledger.open("run", None)

    @pytest.fixture
    def family(self, ledger):
        """A run, its child and its grandchild."""
        parent = ledger.open("parent", None)
        child = ledger.open("child", parent)
        return parent, child, ledger.open("grandchild", child)

    # --- calls ---

    def test_reserve_takes_the_call_before_anybody_has_judged_it(self, run):
        assert run.reserve(call(1)).used[0].tool_calls == 1
        assert run.reserve(call(2)).used[0].tool_calls == 2
        assert run.used()[0].tool_calls == 2

    def test_reserve_takes_it_from_every_ancestor(self, family):
        parent, child, grandchild = family
        parent.reserve(call(1))
        child.reserve(call(1))
        assert [used.tool_calls for used in grandchild.reserve(call(1)).used] == [1, 2, 3]
        assert [used.tool_calls for used in grandchild.used()] == [1, 2, 3]
        assert [used.tool_calls for used in parent.used()] == [3]

    def test_release_gives_it_back_everywhere(self, family):
        parent, _, grandchild = family
        grandchild.reserve(call(1, cost_usd=USD))
        grandchild.release(call(1, cost_usd=USD))
        assert grandchild.used() == (Used(), Used(), Used())
        assert parent.used() == (Used(),)

    def test_a_reserved_call_is_seen_by_the_next(self, run):
        run.reserve(call(1))
        assert run.reserve(call(2, step=3)).entry.calls == 0  # in flight together: one round
        run.settle(call(1), OK)
        run.settle(call(2, step=3), OK)
        entry = run.reserve(call(3, step=4)).entry
        assert (entry.calls, entry.same) == (1, 1)

    def test_calls_of_a_tool_include_the_one_that_asks(self, run):
        assert [run.reserve(call(number, args=str(number))).tool_calls for number in range(3)] == [1, 2, 3]
        assert run.reserve(call(9, tool="other")).tool_calls == 1

    def test_duplicate_reserve_changes_no_count(self, family):
        *_, grandchild = family
        first = grandchild.reserve(call(1, cost_usd=USD))
        again = grandchild.reserve(call(1, cost_usd=USD))
        assert not first.duplicate
        assert again.duplicate
        assert again._replace(duplicate=False) == first

    def test_duplicate_reserve_after_the_end_changes_no_count(self, run):
        run.reserve(call(1))
        run.settle(call(1), OK)
        assert run.reserve(call(1)).duplicate
        run.settle(call(1), OK)
        assert run.used()[0].tool_calls == 1
        assert run.reserve(call(2)).entry.same == 1

    @pytest.mark.parametrize("ends", ["settle", "release", "hint"])
    def test_an_end_that_is_told_again_changes_nothing(self, family, ends):
        *_, grandchild = family
        priced = call(1, cost_usd=USD)
        grandchild.reserve(priced)

        def end():
            if ends == "settle":
                grandchild.settle(priced, OK)
            else:
                grandchild.release(priced, hinted="s" if ends == "hint" else None)

        end()
        used, hints = grandchild.used(), grandchild.reserve(call(2)).hints
        grandchild.release(call(2))
        end()
        assert grandchild.used() == used
        assert grandchild.reserve(call(3)).hints == hints

    @pytest.mark.parametrize("ends", ["settle", "release"])
    def test_the_end_of_a_call_that_was_never_reserved_changes_nothing(self, run, ends):
        if ends == "settle":
            assert run.settle(call(1, cost_usd=USD), OK) == (Used(),)
        else:
            run.release(call(1, cost_usd=USD), hinted="s")
        look = run.reserve(call(2))
        assert (look.used, look.entry.calls, look.hints) == ((Used(tool_calls=1),), 0, {})

    def test_the_answer_is_a_copy(self, run):
        run.reserve(call(1))
        run.release(call(1), hinted="s")
        look = run.reserve(call(2))
        before = (look.used, dict(look.hints), look.entry, look.window)
        run.settle(call(2), OK)
        run.reserve(call(3))
        run.release(call(3), hinted="s")
        assert (look.used, dict(look.hints), look.entry, look.window) == before

    def test_hints_are_counted_a_subject_once_a_step(self, run):
        for number, step in enumerate((1, 1, 2), start=1):
            run.reserve(call(number, step=step))
            run.release(call(number, step=step), hinted="s")
        assert run.reserve(call(9, step=3)).hints == {"s": 2}

    def test_progress_opens_an_epoch(self, run):
        run.reserve(call(1))
        run.settle(call(1), OK)
        run.progress()
        assert run.reserve(call(2)).entry.same == 0

    # --- money, tokens, steps ---

    def test_a_call_s_own_price_is_held_then_spent(self, family):
        *_, grandchild = family
        priced = call(1, cost_usd=USD)
        for used in grandchild.reserve(priced).used:
            assert (used.spend_usd, used.held_usd) == (Decimal(0), USD)
        for used in grandchild.settle(priced, OK):
            assert (used.spend_usd, used.held_usd, used.tool_calls) == (USD, Decimal(0), 1)

    def test_a_failing_body_costs_its_call(self, run):
        priced = call(1, cost_usd=USD)
        run.reserve(priced)
        run.settle(priced, Settled("d", error="boom"))
        assert run.used() == (Used(tool_calls=1, spend_usd=USD),)

    def test_charge_reaches_every_ancestor(self, family):
        parent, _, grandchild = family
        usage = Usage("m", input_tokens=10, output_tokens=3, cached_input_tokens=5, cost_usd=USD)
        assert grandchild.charge(usage) == (Used(tokens=13, spend_usd=USD),) * 3
        assert parent.used() == (Used(tokens=13, spend_usd=USD),)

    def test_charge_of_an_unknown_price_adds_tokens_only(self, run):
        assert run.charge(Usage("m", input_tokens=1)) == (Used(tokens=1),)

    def test_charge_takes_the_place_of_what_was_held(self, run):
        run.hold(Decimal("0.05"))
        assert run.charge(Usage("m", cost_usd=USD), held=Decimal("0.05")) == (Used(spend_usd=USD),)

    def test_hold_and_give_back(self, family):
        *_, grandchild = family
        assert [used.held_usd for used in grandchild.hold(USD)] == [USD] * 3
        assert [used.held_usd for used in grandchild.hold(-USD)] == [Decimal(0)] * 3

    def test_money_is_exact(self, run):
        for _ in range(10):
            run.charge(Usage("m", cost_usd=Decimal("0.1")))
        assert run.used()[0].spend_usd == Decimal("1.0")

    def test_steps_are_counted_with_the_ancestors(self, family):
        parent, child, _ = family
        parent.step()
        assert [used.steps for used in child.step()] == [1, 2]

    # --- trip ---

    def test_the_first_trip_wins_and_everybody_is_told_which(self, run):
        first, second = Trip(StopReason.LOOP_DETECTED, "first"), Trip(StopReason.TIME_BUDGET, "second")
        assert run.tripped() is None
        assert run.trip(first) == first
        assert run.trip(second) == first
        assert run.tripped() == first
        assert run.reserve(call(1)).tripped == first

    def test_a_trip_holds_for_descendants_and_not_for_ancestors(self, family):
        parent, child, grandchild = family
        trip = Trip(StopReason.SPEND_BUDGET, "spent", run_id="child")
        child.trip(trip)
        assert grandchild.tripped() == grandchild.reserve(call(1)).tripped == trip
        assert parent.tripped() is None
        assert grandchild.trip(Trip(StopReason.TIME_BUDGET, "late")) == trip

    def test_the_nearest_trip_holds(self, family):
        parent, child, grandchild = family
        near, far = Trip(StopReason.LOOP_DETECTED, "near"), Trip(StopReason.TIME_BUDGET, "far")
        child.trip(near)
        parent.trip(far)
        assert grandchild.tripped() == near

    # --- runs ---

    def test_runs_do_not_mix(self, ledger):
        one, two = ledger.open("one", None), ledger.open("two", None)
        one.reserve(call(1))
        one.trip(Trip(StopReason.LOOP_DETECTED, "x"))
        look = two.reserve(call(1))
        assert (look.used[0].tool_calls, look.entry.calls, look.duplicate, look.tripped) == (1, 0, False, None)

    def test_opening_a_run_again_joins_it(self, ledger):
        one = ledger.open("one", None)
        one.reserve(call(1))
        assert ledger.open("one", None).used() == one.used() == (Used(tool_calls=1),)

    # --- many at once ---

    def test_d1_parallel_calls_each_see_a_number_of_their_own(self, family):
        parent, child, grandchild = family
        seen: list[tuple[int, int]] = []
        ready = threading.Barrier(32)

        def work(number: int) -> None:
            run = child if number % 2 else grandchild
            ready.wait()
            for turn in range(4):
                look = run.reserve(call(100 * number + turn, args=str(number)))
                seen.append((number % 2, look.used[-1].tool_calls))
                run.settle(call(100 * number + turn, args=str(number)), OK)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(count for _, count in seen) == list(range(1, 129))
        assert parent.used()[0].tool_calls == child.used()[0].tool_calls == 128
        assert grandchild.used()[0].tool_calls == 64

    def test_parallel_trips_agree(self, run):
        ready = threading.Barrier(16)
        told = []

        def work(number: int) -> None:
            ready.wait()
            told.append(run.trip(Trip(StopReason.USER_ABORT, str(number))))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({trip.message for trip in told}) == 1

    def test_parallel_charges_all_arrive(self, run):
        def work() -> None:
            for _ in range(50):
                run.charge(Usage("m", input_tokens=1, cost_usd=USD))

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert run.used() == (Used(tokens=400, spend_usd=USD * 400),)

    # --- for an event loop ---

    def test_the_asynchronous_twins_do_the_same(self, family):
        parent, _, grandchild = family

        async def work() -> None:
            assert (await grandchild.areserve(call(1, cost_usd=USD))).used[0].tool_calls == 1
            assert (await grandchild.asettle(call(1, cost_usd=USD), OK))[-1].spend_usd == USD
            await grandchild.areserve(call(2))
            await grandchild.arelease(call(2), hinted="s")
            assert (await grandchild.areserve(call(3))).hints == {"s": 1}
            assert (await grandchild.acharge(Usage("m", output_tokens=7), held=Decimal(0)))[0].tokens == 7
            trip = Trip(StopReason.USER_ABORT, "x")
            assert await grandchild.atrip(trip) == trip

        asyncio.run(work())
        assert parent.used() == (Used(tool_calls=2, tokens=7, spend_usd=USD),)

    def test_d1_parallel_tasks_each_see_a_number_of_their_own(self, run):
        async def one(number: int) -> int:
            look = await run.areserve(call(number, args=str(number)))
            await run.asettle(call(number, args=str(number)), OK)
            return look.used[0].tool_calls

        async def work() -> list[int]:
            return await asyncio.gather(*(one(number) for number in range(64)))

        assert sorted(asyncio.run(work())) == list(range(1, 65))
