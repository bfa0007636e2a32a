from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_loopwatch.errors import LoopwatchError, PolicyError
from otel_loopwatch.policy import PRESETS, Budgets, LoopRules, Policy, Retry, ToolRules

COUNTS = ["max_steps", "max_tool_calls", "max_tokens", "max_depth", "max_children"]
NOT_A_LIMIT = [0, -1, True, "3", 1.5, [], float("nan"), float("inf"), Decimal("NaN")]


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("value", NOT_A_LIMIT, ids=repr)
def test_a_count_is_a_whole_number_above_zero(name, value):
    with pytest.raises(PolicyError) as caught:
        Budgets(**{name: value})
    assert caught.value.key == name


@pytest.mark.parametrize("name", ["max_seconds", "warn_at"])
@pytest.mark.parametrize("value", [0, -0.5, True, "3", [], math.nan, math.inf, -math.inf, Decimal("NaN")], ids=repr)
def test_seconds_and_shares_are_finite_and_above_zero(name, value):
    with pytest.raises(PolicyError) as caught:
        Budgets(**{name: value})
    assert caught.value.key == name


@pytest.mark.parametrize("owner, name", [(Budgets, "max_spend_usd"), (ToolRules, "cost_usd")])
@pytest.mark.parametrize(
    "value", [0, -1, Decimal(0), Decimal("-0.1"), True, "0.5", math.nan, math.inf, Decimal("sNaN"), Decimal("Infinity")]
)
def test_money_is_finite_and_above_zero(owner, name, value):
    with pytest.raises(PolicyError) as caught:
        owner(**{name: value})
    assert caught.value.key == name


@pytest.mark.parametrize("value", [0.1, Decimal("0.1")])
def test_money_is_decimal_and_a_float_means_what_it_reads(value):
    assert Budgets(max_spend_usd=value).max_spend_usd == Decimal("0.1")


@pytest.mark.parametrize(
    "make, key",
    [
        (lambda: Budgets(warn_at=1.01), "warn_at"),
        (lambda: Budgets(warn_at=None), "warn_at"),
        (lambda: Budgets(max_seconds=10**400), "max_seconds"),
        (lambda: LoopRules(max_repeats=0), "max_repeats"),
        (lambda: LoopRules(max_repeats=None), "max_repeats"),
        (lambda: LoopRules(cycle_period=1), "cycle_period"),
        (lambda: LoopRules(cycle_period=17), "cycle_period"),
        (lambda: LoopRules(cycle_laps=1), "cycle_laps"),
        (lambda: LoopRules(action="stop"), "action"),
        (lambda: LoopRules(compare_results=1), "compare_results"),
        (lambda: Retry(max_attempts=0), "max_attempts"),
        (lambda: Retry(statuses=(99,)), "statuses"),
        (lambda: Retry(statuses=(True,)), "statuses"),
        (lambda: Retry(statuses=429), "statuses"),
        (lambda: ToolRules(kind="pool"), "kind"),
        (lambda: ToolRules(kind=[]), "kind"),
        (lambda: ToolRules(ignore_args="request_id"), "ignore_args"),
        (lambda: ToolRules(ignore_args=("",)), "ignore_args"),
        (lambda: ToolRules(ignore_args=3), "ignore_args"),
        (lambda: ToolRules(loop_key="a"), "loop_key"),
        (lambda: ToolRules(exempt="yes"), "exempt"),
        (lambda: ToolRules(retry={"max_attempts": 2}), "retry"),
        (lambda: ToolRules(timeout_s=0), "timeout_s"),
        (lambda: Policy(mode="off"), "mode"),
        (lambda: Policy(on_denied="ignore"), "on_denied"),
        (lambda: Policy(budgets={"max_steps": 3}), "budgets"),
        (lambda: Policy(loops=None), "loops"),
        (lambda: Policy(tools={"a": {"kind": "read"}}), "tools.a"),
        (lambda: Policy(tools=None), "tools"),
        (lambda: Policy(tools=["a"]), "tools"),
        (lambda: Policy(tools={3: ToolRules()}), "tools"),
        (lambda: ToolRules(ignore_args=(name for name in "ab")), "ignore_args"),
        (lambda: Policy(allow="search"), "allow"),
        (lambda: Policy(allow=None), "allow"),
        (lambda: Policy(deny=[1]), "deny"),
        (lambda: Policy.preset("prod"), "preset"),
    ],
)
def test_what_is_not_allowed_is_named(make, key):
    with pytest.raises(PolicyError) as caught:
        make()
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key}: ")
    assert isinstance(caught.value, LoopwatchError)
    assert isinstance(caught.value, ValueError)


@given(st.one_of(st.integers(), st.floats(), st.text(max_size=5), st.none(), st.booleans(), st.decimals()))
def test_any_value_is_kept_or_refused_with_a_policy_error(value):
    for owner in (Budgets, LoopRules, ToolRules, Retry, Policy):
        # A hint may be anything.
        for item in (field for field in dataclasses.fields(owner) if field.name != "hint"):
            try:
                made = owner(**{item.name: value})
            except PolicyError as error:
                assert error.key is not None
            else:
                assert made == dataclasses.replace(made)


def test_the_operator_wins_over_the_author_field_by_field():
    policy = Policy(
        loops=LoopRules(max_repeats=7),
        tools={"pay": ToolRules(action="abort")},
        default_tool=ToolRules(max_repeats=5, sensitive=True),
    )
    rules = policy.rules_for("pay", ToolRules(action="observe", max_repeats=2))
    assert (rules.action, rules.max_repeats, rules.tool.sensitive) == ("abort", 2, True)
    assert policy.rules_for("pay").max_repeats == 5
    assert Policy(loops=LoopRules(max_repeats=7)).rules_for("pay").max_repeats == 7


def test_false_is_said_and_none_is_not():
    policy = Policy(tools={"a": ToolRules(exempt=False)}, default_tool=ToolRules(exempt=True))
    assert policy.rules_for("a", ToolRules(exempt=True)).exempt is False
    assert policy.rules_for("b").exempt is True


def test_max_repeats_of_a_poll_is_its_limit_of_unchanged_answers():
    assert Policy(tools={"p": ToolRules(kind="poll", max_repeats=30)}).rules_for("p").max_poll_repeats == 30
    assert Policy().rules_for("p").max_poll_repeats == LoopRules().max_poll_repeats


def test_observe_mode_disarms_what_a_tool_asks_for():
    assert Policy(mode="observe", tools={"a": ToolRules(action="abort")}).rules_for("a").action == "observe"


@pytest.mark.parametrize(
    "allow, deny, tool, permitted",
    [
        ((), (), "search", True),
        (("search",), (), "search", True),
        (("search",), (), "Search", False),
        (("kb.*",), (), "kb.read", True),
        (("kb.*",), ("kb.write",), "kb.write", False),
        ((), ("*",), "search", False),
    ],
)
def test_deny_wins_over_allow(allow, deny, tool, permitted):
    assert Policy(allow=allow, deny=deny).permits(tool) is permitted


def test_a_policy_cannot_be_changed():
    rules = {"a": ToolRules()}
    policy = Policy(tools=rules)
    rules["b"] = ToolRules()
    assert list(policy.tools) == ["a"]
    with pytest.raises(TypeError):
        policy.tools["c"] = ToolRules()
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.mode = "observe"


def test_the_default_has_no_budgets():
    assert Policy() == Policy.preset("default")
    assert Policy().budgets == Budgets()


@pytest.mark.parametrize(
    "name, max_repeats, action",
    [("most_agents", 3, "hint"), ("production", 2, "abort"), ("debug", 1, "abort"), ("exploratory", 10, "hint")],
)
def test_presets_keep_the_numbers_of_the_first_seed(name, max_repeats, action):
    rules = Policy.preset(name).rules_for("any")
    assert (rules.max_repeats, rules.action) == (max_repeats, action)


def test_the_safe_preset_keeps_the_numbers_of_the_second_and_third_seed():
    assert Policy.preset("safe").budgets == Budgets(
        max_steps=25, max_tool_calls=12, max_seconds=60, max_tokens=150_000, max_spend_usd=Decimal("0.50")
    )


def test_presets_cannot_be_changed():
    with pytest.raises(TypeError):
        PRESETS["mine"] = Policy()


def test_a_policy_can_be_sent_to_a_worker_and_copied():
    policy = Policy(mode="observe", tools={"pay": ToolRules(kind="write", cost_usd=0.1)}, deny=("rm*",))
    for other in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert other == policy
        with pytest.raises(TypeError):
            other.tools["pay"] = ToolRules()
