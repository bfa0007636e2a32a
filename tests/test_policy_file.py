from __future__ import annotations

import os
import re
import subprocess
import sys
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_loopwatch import policy_file
from otel_loopwatch.errors import PolicyError
from otel_loopwatch.policy import PRESETS, Budgets, LoopRules, Policy, Retry, ToolRules
from otel_loopwatch.policy_file import from_env, json_schema, load, loads
from otel_loopwatch.prices import ModelPrice

# The third seed's "Config segura por defecto", word for word.
SEED = """\
budgets:
  max_steps: 25
  max_tool_calls: 12
  max_seconds: 60
tools:
  dedupe_window_s: 60
  cache_ttl_s: 30
  retries:
    max_attempts: 2
    retryable_status: [408, 429, 500, 502, 503, 504]
"""

DESIGN = """\
mode: enforce
budgets: {max_steps: 25, max_tool_calls: 12, max_seconds: 60, max_tokens: 150000, max_spend_usd: 0.50}
loops:   {max_repeats: 3, action: hint, hints_before_abort: 2}
tools:
  dedupe_window_s: 60
  cache_ttl_s: 30
  retries: {max_attempts: 2, retryable_status: [408, 429, 500, 502, 503, 504]}
  per_tool:
    poll_job: {kind: poll, max_repeats: 30}
    pay:      {kind: write, action: abort, max_repeats: 1}
  allow: [search, read_page, poll_job, pay]
"""


def refused(text: str, **kwargs) -> PolicyError:
    with pytest.raises(PolicyError) as caught:
        loads(text, **kwargs)
    return caught.value


def written(tmp_path: Path, name: str, content: str | bytes) -> Path:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


# --- what a file may say


def test_the_file_of_the_third_seed_loads_unchanged():
    policy = loads(SEED)
    assert policy.budgets == Budgets(max_steps=25, max_tool_calls=12, max_seconds=60)
    assert policy.default_tool == ToolRules(
        dedupe_window_s=60, cache_ttl_s=30, retry=Retry(max_attempts=2, statuses=(408, 429, 500, 502, 503, 504))
    )
    assert policy.loops == LoopRules()


def test_the_file_of_the_design():
    policy = loads(DESIGN)
    assert policy.budgets == PRESETS["safe"].budgets
    assert policy.budgets.max_spend_usd == Decimal("0.5")
    assert policy.loops == LoopRules(max_repeats=3, action="hint", hints_before_abort=2)
    assert policy.tools == {
        "poll_job": ToolRules(kind="poll", max_repeats=30),
        "pay": ToolRules(kind="write", action="abort", max_repeats=1),
    }
    assert policy.allow == ("search", "read_page", "poll_job", "pay")


def test_toml_says_the_same():
    text = """
    mode = "enforce"
    budgets = { max_steps = 25, max_tool_calls = 12, max_seconds = 60, max_tokens = 150_000, max_spend_usd = 0.50 }
    loops = { max_repeats = 3, action = "hint", hints_before_abort = 2 }
    [tools]
    dedupe_window_s = 60
    cache_ttl_s = 30
    retries = { max_attempts = 2, retryable_status = [408, 429, 500, 502, 503, 504] }
    allow = ["search", "read_page", "poll_job", "pay"]
    [tools.per_tool]
    poll_job = { kind = "poll", max_repeats = 30 }
    pay = { kind = "write", action = "abort", max_repeats = 1 }
    """
    assert loads(text, format="toml") == loads(DESIGN)


def test_every_rule_of_a_tool_can_be_written():
    rules = {
        "kind": ("read", "read"),
        "max_repeats": ("2", 2),
        "max_calls": ("9", 9),
        "action": ("observe", "observe"),
        "ignore_args": ("[meta.trace_id]", ("meta.trace_id",)),
        "loop_key": ("[url]", ("url",)),
        "hint": ("try another page", "try another page"),
        "exempt": ("false", False),
        "sensitive": ("true", True),
        "cost_usd": ("0.002", Decimal("0.002")),
        "idempotent": ("true", True),
        "cache_ttl_s": ("30", 30),
        "dedupe_window_s": ("1.5", 1.5),
        "timeout_s": ("1e1", 10),
        "breaker": ("false", False),
    }
    body = "\n".join(f"      {key}: {text}" for key, (text, _) in rules.items())
    policy = loads(f"tools:\n  per_tool:\n    t:\n{body}\n      retries: {{max_attempts: 4}}")
    expected = {key: value for key, (_, value) in rules.items()}
    assert policy.tools["t"] == ToolRules(retry=Retry(max_attempts=4), **expected)


def test_the_grammar_has_every_field_of_the_policy():
    def keys(section):
        return set(get_type_hints(section))

    fields = {owner: set(owner.__dataclass_fields__) for owner in (Budgets, LoopRules, ToolRules, Retry, Policy)}
    assert keys(policy_file.BudgetsSection) == fields[Budgets]
    assert keys(policy_file.LoopsSection) == fields[LoopRules]
    assert keys(policy_file.ToolSection) - {"retries"} == fields[ToolRules] - {"retry"}
    assert len(keys(policy_file.RetriesSection)) == len(fields[Retry])
    in_tools = {"tools": "per_tool", "default_tool": "default"}
    top, tools = keys(policy_file.PolicySection), keys(policy_file.ToolsSection)
    missing = {name for name in fields[Policy] if name not in top and in_tools.get(name, name) not in tools}
    assert missing == {"price_of"}, "a function has no place in a file"
    assert keys(policy_file.PriceSection) == set(ModelPrice.__dataclass_fields__)


PRICES = """
budgets: {max_spend_usd: 2, on_unpriced: stop}
prices:
  my-model: {input_usd_per_mtok: 0.1, output_usd_per_mtok: 2, cached_input_usd_per_mtok: 0}
  "local/*": {input_usd_per_mtok: 0, output_usd_per_mtok: 0}
"""


def test_prices_and_what_is_done_without_one():
    policy = loads(PRICES)
    assert policy.budgets.on_unpriced == "stop"
    assert policy.prices == {
        "my-model": ModelPrice(
            input_usd_per_mtok=Decimal("0.1"), output_usd_per_mtok=Decimal(2), cached_input_usd_per_mtok=Decimal(0)
        ),
        "local/*": ModelPrice(input_usd_per_mtok=0, output_usd_per_mtok=0),
    }
    toml = "[prices.my-model]\ninput_usd_per_mtok = 0.1\noutput_usd_per_mtok = 2\ncached_input_usd_per_mtok = 0\n"
    assert loads(toml, format="toml").prices["my-model"] == policy.prices["my-model"]


@pytest.mark.parametrize(
    "text, key, says",
    [
        ("prices:\n  m: {input_usd_per_mtok: 1}", "prices.m.output_usd_per_mtok", "is missing"),
        ("prices:\n  m: {input_usd_per_mtok: -1, output_usd_per_mtok: 1}", "prices.m.input_usd_per_mtok", "at least 0"),
        ("prices:\n  m: {input_usd_per_mtok: .nan, output_usd_per_mtok: 1}", "prices.m.input_usd_per_mtok", "finite"),
        ("prices:\n  m: {input_usd_per_mtok: 1e30, output_usd_per_mtok: 1}", "prices.m.input_usd_per_mtok", "below"),
        ("prices:\n  m: {input_usd_per_mtok: true, output_usd_per_mtok: 1}", "prices.m.input_usd_per_mtok", "a number"),
        (
            "prices:\n  m: {input: 1}",
            "prices.m.input",
            "unknown key; allowed here: input_usd_per_mtok, output_usd_per_mtok",
        ),
        (
            "prices:\n  m:\n    input_usd: 1\n    output_usd_per_mtok: 1",
            "prices.m.input_usd",
            "(did you mean input_usd_per_mtok?)",
        ),
        ("prices:\n  m: 3", "prices.m", "must be a mapping"),
        ("prices:\n  [m]", "prices", "must be a mapping"),
        ("budgets:\n  on_unpriced: refuse", "budgets.on_unpriced", "'warn', 'estimate' or 'stop'"),
        ("budgets:\n  max_spend_usd: 1e300", "budgets.max_spend_usd", "below"),
    ],
)
def test_a_wrong_price_is_named_with_its_line(text, key, says):
    with pytest.raises(PolicyError, match=re.escape(says)) as caught:
        loads(text, file="p.yaml")
    assert (caught.value.key, caught.value.file) == (key, "p.yaml")
    assert caught.value.line == (3 if "input_usd:" in text else 1 if key == "prices" else 2)


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n", "---\n", "{}", "null"])
def test_an_empty_file_is_the_default(text):
    assert loads(text) == Policy()


def test_an_empty_toml_file_is_the_default():
    assert loads("", format="toml") == Policy()


def test_default_rules_win_over_the_shorthands():
    policy = loads("tools: {cache_ttl_s: 30, dedupe_window_s: 60, default: {cache_ttl_s: 5}}")
    assert (policy.default_tool.cache_ttl_s, policy.default_tool.dedupe_window_s) == (5, 60)


def test_lists_of_tools():
    policy = loads("tools: {allow: ['kb.*'], deny: [kb.write], on_denied: hint}")
    assert (policy.allow, policy.deny, policy.on_denied) == (("kb.*",), ("kb.write",), "hint")


# --- extends


def test_extends_changes_a_preset_key_by_key():
    policy = loads("extends: safe\nbudgets: {max_steps: 40}")
    assert policy.budgets.max_steps == 40
    assert policy.budgets.max_tool_calls == 12
    assert loads("extends: production").loops == PRESETS["production"].loops


def test_null_lifts_a_limit_of_the_preset():
    assert loads("extends: safe\nbudgets: {max_seconds: null}").budgets.max_seconds is None


def test_rules_of_tools_add_to_those_of_the_preset(monkeypatch):
    base = Policy(tools={"a": ToolRules(kind="read", max_calls=3), "b": ToolRules(exempt=True)}, allow=("a", "b"))
    monkeypatch.setattr(policy_file, "PRESETS", {"mine": base})
    policy = loads("extends: mine\ntools: {per_tool: {a: {max_calls: 5}}}")
    assert policy.tools == {"a": ToolRules(kind="read", max_calls=5), "b": ToolRules(exempt=True)}
    assert policy.allow == ("a", "b")


def test_an_unknown_preset_is_named_with_those_that_are_there():
    error = refused("\nextends: prodution")
    assert (error.key, error.line) == ("extends", 2)
    assert "did you mean production?" in str(error)
    assert "most_agents" in str(error)


# --- what is refused, and where


@pytest.mark.parametrize(
    "text, key, line, says",
    [
        ("budgets:\n  max_step: 3", "budgets.max_step", 2, "did you mean max_steps?"),
        ("buget: {}", "buget", 1, "allowed here: extends, mode, budgets, loops, tools"),
        ("tools:\n  per_tool:\n    t:\n      knd: read", "tools.per_tool.t.knd", 4, "did you mean kind?"),
        ("tools:\n  retries: {max_attempt: 1}", "tools.retries.max_attempt", 2, "max_attempts, retryable_status"),
        ("tools: {default: {retry: {}}}", "tools.default.retry", 1, "did you mean retries?"),
        ("tools:\n  per_tool:\n    kb.read: {x: 1}", 'tools.per_tool."kb.read".x', 3, "unknown key"),
        ("<<: {mode: observe}", "<<", 1, "unknown key"),
        ("budgets:\n  max_steps: 0", "budgets.max_steps", 2, "must be at least 1, not 0 (leave it out"),
        ("budgets: {max_tokens: -1}", "budgets.max_tokens", 1, "must be at least 1, not -1"),
        ("budgets: {max_steps: 2.5}", "budgets.max_steps", 1, "must be a whole number, not 2.5"),
        ("budgets: {max_steps: '3'}", "budgets.max_steps", 1, "must be a whole number, not '3'"),
        ("budgets: {max_steps: true}", "budgets.max_steps", 1, "must be a whole number, not true"),
        ("budgets: {max_steps: 123456789012345678901}", "budgets.max_steps", 1, "must be a whole number"),
        ("budgets: {max_seconds: .nan}", "budgets.max_seconds", 1, "must be a finite number, not nan"),
        ("budgets: {max_seconds: -.inf}", "budgets.max_seconds", 1, "not -inf"),
        ("budgets: {max_seconds: 1e999}", "budgets.max_seconds", 1, "must be a finite number, not inf"),
        ("budgets: {max_seconds: 0.0}", "budgets.max_seconds", 1, "must be above 0"),
        ("budgets: {max_seconds: 1:30}", "budgets.max_seconds", 1, "must be a number, not '1:30'"),
        ("budgets: {max_spend_usd: -0.5}", "budgets.max_spend_usd", 1, "must be above 0"),
        ("budgets: {max_spend_usd: $5}", "budgets.max_spend_usd", 1, "must be a number, not '$5'"),
        ("budgets: {warn_at: 80}", "budgets.warn_at", 1, "must be at most 1, not 80"),
        ("budgets: 3", "budgets", 1, "must be a mapping, not 3"),
        ("budgets:", "budgets", 1, "must be a mapping, not null"),
        ("budgets: [max_steps]", "budgets", 1, "must be a mapping, not a list"),
        ("loops: {max_repeats: null}", "loops.max_repeats", 1, "must be a whole number, not null"),
        ("loops: {cycle_period: 17}", "loops.cycle_period", 1, "must be at most 16"),
        ("loops: {cycle_laps: 1}", "loops.cycle_laps", 1, "must be at least 2"),
        ("loops: {action: stop}", "loops.action", 1, "'hint', 'abort' or 'observe', not 'stop'"),
        ("loops: {compare_results: yes}", "loops.compare_results", 1, "must be true or false, not 'yes'"),
        ("mode: dry-run", "mode", 1, "'enforce' or 'observe'"),
        ("mode: {a: b}", "mode", 1, "not a mapping"),
        ("tools: {allow: search}", "tools.allow", 1, "must be a list, not 'search'"),
        ("tools: {allow: [search, '']}", "tools.allow.1", 1, "must not be empty"),
        ("tools: {allow: [3]}", "tools.allow.0", 1, "must be text, not 3"),
        ("tools: {per_tool: {'': {}}}", "tools.per_tool.", 1, "must not be empty"),
        ("tools: {per_tool: [a]}", "tools.per_tool", 1, "must be a mapping"),
        ("tools: {retries: {retryable_status: [42]}}", "tools.retries.retryable_status.0", 1, "at least 100"),
        ("tools: {cache_ttl_s: 0}", "tools.cache_ttl_s", 1, "must be above 0"),
        ("extends: [safe]", "extends", 1, "must be text"),
        ("budgets:\n  max_steps: 1\n  max_steps: 2", "budgets.max_steps", 3, "is there twice, first in line 2"),
        ("budgets:\n  ? [a]\n  : 1", "budgets", 2, "a key must be text"),
    ],
)
def test_the_fault_is_named_with_its_line_and_what_is_allowed(text, key, line, says):
    error = refused(text, file="policy.yaml")
    assert (error.key, error.line, error.file) == (key, line, "policy.yaml")
    assert str(error).startswith(f"policy.yaml:{line}: {key}: ")
    assert says in str(error)


def test_the_first_of_several_faults_is_named_and_the_others_are_counted():
    error = refused("mode: enforce\nloops: {action: stop}\nbudgets: {max_steps: 0}\nbuget: 1")
    assert (error.key, error.line) == ("loops.action", 2)
    assert "[and 2 more]" in str(error)


@pytest.mark.parametrize("text", ["- a\n- b", "just words", "3", "root:x:0:0:root:/root:/bin/bash"])
def test_the_top_must_be_a_mapping_and_is_not_quoted(text):
    error = refused(text, file="f.yaml")
    assert "the top of a policy must be a mapping" in str(error)
    assert "words" not in str(error)
    assert "bash" not in str(error)


def test_a_long_value_is_not_shown_at_length():
    assert len(str(refused(f"mode: {'x' * 10_000}"))) < 200
    assert len(str(refused(f"{'x' * 900_000} = 1", format="toml"))) < 200


@pytest.mark.parametrize(
    "text, line, says",
    [
        ("a: &x [1]\nb: *x", 2, "aliases are not allowed"),
        ("a: &a {b: *a}", 1, "aliases are not allowed"),
        ("mode: !!python/object/apply:os.system ['true']", 1, "tags are not allowed"),
        ("mode: !!str enforce", 1, "tags are not allowed"),
        ("mode: ! enforce", 1, "tags are not allowed"),
        ("budgets: !include other.yaml", 1, "tags are not allowed"),
        ("a: " + "[" * 50 + "]" * 50, 1, "nested too deeply"),
        ("[" * 100_000, 1, "nested too deeply"),
        ("- " * 100_000, 1, "nested too deeply"),
        ("mode: enforce\n---\nmode: observe", 2, "another document"),
        ("a: b: c", 1, "mapping values are not allowed"),
        ("mode: 'enforce", 1, "end of stream"),
        ("mode: enforce\n\tbudgets: {}", 2, "not YAML"),
        ("mode: enforce\na: \0", 2, "special characters"),
    ],
    ids=range(14),
)
def test_yaml_that_is_refused_before_it_is_built(text, line, says):
    error = refused(text, file="f.yaml")
    assert error.line == line
    assert says in str(error)


def test_a_bomb_of_aliases_is_refused_at_its_first_alias():
    doublings = "\n".join(f"{b}: &{b} [*{a}, *{a}]" for a, b in pairwise("abcdefghijklmnop"))
    assert refused(f"a: &a [x, x]\n{doublings}").line == 2


@pytest.mark.parametrize("name", ["no", "yes", "on", "off", "null", "true", "404", "1.5", "2024-01-01", "0x1F", "~"])
def test_a_tool_may_have_any_name(name):
    assert list(loads(f"tools: {{per_tool: {{{name}: {{kind: read}}}}}}").tools) == [name]


@pytest.mark.parametrize("name", ["no", "yes", "on", "off", "y", "2024-01-01", "1:30", "0x1F"])
def test_a_word_in_a_list_of_names_is_text(name):
    assert loads(f"tools: {{allow: [{name}]}}").allow == (name,)


@pytest.mark.parametrize(
    "text, value", [("1e3", 1000), ("150_000", 150_000), ("+7", 7), ("010", 10), (".5", 0.5), ("5.", 5)]
)
def test_numbers_mean_what_they_read(text, value):
    assert loads(f"budgets: {{max_seconds: {text}}}").budgets.max_seconds == value


@pytest.mark.parametrize(
    "text, key, line, says",
    [
        ("\n[budgets]\nmax_step = 3", "budgets.max_step", 3, "did you mean max_steps?"),
        ("[budgets]\nmax_seconds = nan", "budgets.max_seconds", 2, "must be a finite number"),
        ("budgets.max_seconds = inf", "budgets.max_seconds", 1, "must be a finite number"),
        ('[tools.per_tool."kb.read"]\n\nkind = "x"', 'tools.per_tool."kb.read".kind', 3, "'read', 'write' or 'poll'"),
        ("# \n[tools.per_tool.a]\n[tools.per_tool.b]\nmax_calls = 0", "tools.per_tool.b.max_calls", 4, "at least 1"),
        ("\nbudgets = { max_steps = 0 }", "budgets.max_steps", 2, "must be at least 1"),
        ("mode = 2024-01-01", "mode", 1, "must be one of"),
        ("[[tools]]\nallow = []", "tools", 1, "must be a mapping, not a list"),
        ("[budgets]\nmax_steps = 1\nmax_steps = 2", None, 3, "Cannot overwrite"),
        ("[budgets]\n\nmax_steps = one", None, 3, "Invalid value"),
        ("budgets", None, 1, "not TOML"),
        ("x = " + "[" * 100_000, None, None, "nested too deeply"),
        ("x = " + "9" * 5000, None, None, "not TOML"),
        ("a" + ".a" * 2000 + " = 1", None, 1, "1,000 dots"),
    ],
    ids=range(14),
)
def test_toml_faults_are_named_too(text, key, line, says):
    error = refused(text, format="toml", file="p.toml")
    assert error.key == key
    assert error.file == "p.toml"
    assert line in (None, error.line)
    assert says in str(error)


@pytest.mark.parametrize("text", ["1_", "1__0", "_1", "0_", "+_1"])
def test_what_is_nearly_a_number_is_text(text):
    assert refused(f"budgets: {{max_steps: {text}}}", format="yaml", file="p.yaml").key == "budgets.max_steps"


def test_a_number_may_have_its_thousands_apart():
    assert loads("budgets: {max_tokens: 150_000}", format="yaml").budgets.max_tokens == 150_000


@given(st.text(alphabet=st.sampled_from("abudgets:max_steps 0123[]{}&*!#\"'\n-,?|>%@`\t=.~<\\\0é"), max_size=80))
def test_any_text_is_a_policy_or_a_policy_error(text):
    for syntax in ("yaml", "toml"):
        try:
            assert isinstance(loads(text, format=syntax), Policy)
        except PolicyError as error:
            assert error.reason


LIMITS = st.one_of(st.integers(-3, 10**7), st.floats(width=32), st.booleans(), st.none(), st.sampled_from(["3", ""]))


@given(st.sampled_from(sorted(get_type_hints(policy_file.LoopsSection))), LIMITS)
def test_the_grammar_and_the_policy_agree_on_loops(name, value):
    _agree("loops", LoopRules, name, value)


@given(st.sampled_from(sorted(set(get_type_hints(policy_file.BudgetsSection)) - {"max_spend_usd"})), LIMITS)
def test_the_grammar_and_the_policy_agree_on_budgets(name, value):
    _agree("budgets", Budgets, name, value)


def _agree(section: str, owner: type, name: str, value: object) -> None:
    text = {None: "null", True: "true", False: "false"}.get(value) if not isinstance(value, int | float | str) else None
    text = text or (str(value).lower() if isinstance(value, bool) else repr(value))
    text = {"nan": ".nan", "inf": ".inf", "-inf": "-.inf"}.get(text, text)
    try:
        expected = owner(**{name: value})
    except PolicyError:
        assert refused(f"{section}: {{{name}: {text}}}").key == f"{section}.{name}"
    else:
        assert getattr(loads(f"{section}: {{{name}: {text}}}"), section) == expected


# --- files


def test_a_file_is_read_by_its_ending(tmp_path):
    assert load(written(tmp_path, "p.yaml", SEED)) == loads(SEED)
    assert load(written(tmp_path, "p.YML", SEED)) == loads(SEED)
    assert load(written(tmp_path, "p.toml", "[budgets]\nmax_steps = 25")).budgets.max_steps == 25
    assert Policy.load(str(written(tmp_path, "q.yml", SEED))) == loads(SEED)


def test_a_byte_order_mark_and_crlf_are_no_fault(tmp_path):
    assert load(written(tmp_path, "p.yaml", b"\xef\xbb\xbf" + SEED.replace("\n", "\r\n").encode())) == loads(SEED)
    assert load(written(tmp_path, "p.toml", b"\xef\xbb\xbfmode = 'observe'\r\n")).mode == "observe"


def test_the_error_of_a_file_names_file_and_line(tmp_path):
    path = written(tmp_path, "p.yaml", "budgets:\n  max_steps: 0\n")
    with pytest.raises(PolicyError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:2: budgets.max_steps: must be at least 1")


def test_faults_of_the_file_itself(tmp_path):
    fifo = tmp_path / "fifo.yaml"
    os.mkfifo(fifo)
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for path, says in (
        (tmp_path / "missing.yaml", "No such file"),
        (tmp_path / ("x" * 300 + ".yaml"), "cannot be read"),
        (tmp_path / "nul\0.yaml", "cannot be read"),
        (tmp_path / "loop.yaml", "cannot be read"),
        (tmp_path.joinpath("dir.yaml"), "not a file"),
        (fifo, "not a file"),
        (written(tmp_path, "p.json", "{}"), ".yaml, .yml, .toml"),
        (written(tmp_path, "p", ""), ".yaml, .yml, .toml"),
        (written(tmp_path, "big.yaml", b"#" * 1_000_001), "larger than 1,000,000 bytes"),
    ):
        if path.name == "dir.yaml":
            path.mkdir()
        with pytest.raises(PolicyError) as caught:
            load(path)
        assert caught.value.file == str(path)
        assert says in str(caught.value)


@pytest.mark.parametrize("name", ["p.yaml", "p.toml"])
def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path, name):
    with pytest.raises(PolicyError) as caught:
        load(written(tmp_path, name, "# ok\n# caf\xe9\n".encode("latin-1")))
    assert (caught.value.line, caught.value.reason) == (2, "not UTF-8")


def test_a_bad_file_leaves_the_policy_in_force(tmp_path):
    path = written(tmp_path, "p.yaml", SEED)
    policy = load(path)
    path.write_text("budgets: {max_steps: 0}")
    with pytest.raises(PolicyError):
        load(path)
    assert policy.budgets.max_steps == 25


# --- the environment


def test_without_the_variable_there_is_no_policy(monkeypatch):
    assert from_env() is None
    monkeypatch.setenv("LOOPWATCH_POLICY", "  ")
    assert from_env() is None


def test_the_variable_names_a_preset_or_a_file(monkeypatch, tmp_path):
    monkeypatch.setenv("LOOPWATCH_POLICY", " production ")
    assert from_env() is PRESETS["production"]
    monkeypatch.setenv("LOOPWATCH_POLICY", str(written(tmp_path, "p.yaml", SEED)))
    assert from_env() == loads(SEED)


def test_a_preset_wins_over_a_file_of_the_same_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "safe", "mode: observe")
    monkeypatch.setenv("LOOPWATCH_POLICY", "safe")
    assert from_env() is PRESETS["safe"]


@pytest.mark.parametrize(
    "value, says",
    [
        ("prodution", "did you mean production?"),
        ("policy.json", "ends in .yaml, .yml, .toml"),
        ("x" * 100_000, "must be a preset"),
        ("/no/such/policy.yaml", "No such file"),
        ("x" * 10_000 + ".yaml", "cannot be read"),
        ("/", "must be a preset"),
    ],
    ids=range(6),
)
def test_a_variable_that_names_nothing_is_an_error(monkeypatch, value, says):
    monkeypatch.setenv("LOOPWATCH_POLICY", value)
    with pytest.raises(PolicyError, match=says):
        from_env()


# --- the schema


def test_the_schema_describes_every_key():
    schema = json_schema()
    assert schema["$schema"].endswith("2020-12/schema")
    assert schema["additionalProperties"] is False
    for section in ("BudgetsSection", "LoopsSection", "ToolSection"):
        properties = schema["$defs"][section]["properties"]
        assert {key for key, value in properties.items() if "description" not in value} <= {"retries"}
    assert schema["$defs"]["LoopsSection"]["properties"]["max_repeats"]["minimum"] == 1


def test_policies_in_code_need_neither_pydantic_nor_yaml():
    script = "import sys, otel_loopwatch.policy; sys.exit('yaml' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
