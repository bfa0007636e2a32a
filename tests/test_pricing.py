"""The price of one model call: by the user's table, her function, the bundled table, or unknown."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from decimal import Decimal, Inexact, localcontext

import genai_prices
import pytest
from genai_prices import data_snapshot
from hypothesis import given
from hypothesis import strategies as st

from otel_loopwatch import catalogue
from otel_loopwatch.amounts import MAX_COUNT, amount
from otel_loopwatch.calls import Usage
from otel_loopwatch.errors import PolicyError
from otel_loopwatch.model_names import bare, is_prefix, is_revision
from otel_loopwatch.policy import Policy
from otel_loopwatch.prices import ModelPrice
from otel_loopwatch.pricing import FRONTIER, estimate, price, price_by
from otel_loopwatch.testing import capture

MODEL = "gpt-4o-mini"
D4 = ModelPrice(input_usd_per_mtok=1, output_usd_per_mtok=2, cached_input_usd_per_mtok=Decimal("0.1"))
FULL = ModelPrice(
    input_usd_per_mtok=3,
    output_usd_per_mtok=15,
    cached_input_usd_per_mtok=0.3,
    cache_write_usd_per_mtok=3.75,
    reasoning_usd_per_mtok=20,
)
RATES = {
    "input_usd_per_mtok": 1,
    "output_usd_per_mtok": 1,
    "cached_input_usd_per_mtok": 1,
    "cache_write_usd_per_mtok": 1,
    "reasoning_usd_per_mtok": 1,
}


def rate(**tokens: int) -> Decimal:
    return genai_prices.calc_price(genai_prices.Usage(**tokens), MODEL).total_price


PLAIN, CACHED, OUT = (
    rate(input_tokens=1, output_tokens=0),
    rate(input_tokens=1, cache_read_tokens=1, output_tokens=0),
    rate(output_tokens=1),
)
MODELS = [(provider, model) for provider in data_snapshot.get_snapshot().providers for model in provider.models]


# --- the user's own prices --------------------------------------------------------------------------------------------


def test_d4_both_conventions_cost_the_same_to_the_cent():
    inclusive = Usage("m", input_tokens=1000, cached_input_tokens=400, output_tokens=50)
    exclusive = Usage.from_exclusive("m", input_tokens=600, cached_input_tokens=400, output_tokens=50)
    assert inclusive == exclusive
    assert D4.price(inclusive) == Decimal("0.00074")


def test_every_kind_of_token_has_its_rate():
    usage = Usage(
        "m",
        input_tokens=1_000_000,
        output_tokens=1_000_000,
        cached_input_tokens=300_000,
        cache_write_input_tokens=200_000,
        reasoning_output_tokens=400_000,
    )
    assert FULL.price(usage) == Decimal("1.5") + Decimal("0.09") + Decimal("0.75") + Decimal(9) + Decimal(8)


def test_a_rate_that_is_not_given_is_that_of_the_whole():
    plain = ModelPrice(input_usd_per_mtok=3, output_usd_per_mtok=15)
    parts = Usage("m", 1000, 100, 400, cache_write_input_tokens=300, reasoning_output_tokens=60)
    assert plain.price(parts) == plain.price(Usage("m", 1000, 100)) == Decimal("0.0045")


def test_d4_parts_larger_than_the_whole_are_not_billed_below_zero():
    assert FULL.price(Usage("m", 10, 5, 400, reasoning_output_tokens=100)) == Decimal("0.00212")


def test_a_price_may_be_zero():
    assert ModelPrice(input_usd_per_mtok=0, output_usd_per_mtok=0).price(Usage("m", 10**9, 10**9)) == 0


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), -1, -0.01, True, "3", Decimal("NaN"), Decimal(-1), 10**5000, 2**63, [1]],
    ids=range(11),
)
def test_d3_a_rate_that_is_no_amount_is_refused_by_name(name, value):
    with pytest.raises(PolicyError, match=name):
        ModelPrice(**RATES | {name: value})


@pytest.mark.parametrize("name", ["input_usd_per_mtok", "output_usd_per_mtok"])
def test_input_and_output_have_no_default(name):
    with pytest.raises(PolicyError, match=name):
        ModelPrice(**RATES | {name: None})


def test_floats_of_money_are_read_as_they_are_written():
    assert ModelPrice(input_usd_per_mtok=0.1, output_usd_per_mtok=0.3).input_usd_per_mtok == Decimal("0.1")


@pytest.mark.parametrize(
    "model, found",
    [
        ("my-model", 1),
        ("local/llama", 2),
        ("LOCAL/Llama", 2),
        ("my-model-2", 3),
        ("my-other", None),
        (None, None),
    ],
)
def test_a_name_comes_before_a_pattern_and_the_first_pattern_counts(model, found):
    prices = {
        "local/*": ModelPrice(input_usd_per_mtok=2, output_usd_per_mtok=0),
        "my-model*": ModelPrice(input_usd_per_mtok=3, output_usd_per_mtok=0),
        "my-*-2": ModelPrice(input_usd_per_mtok=4, output_usd_per_mtok=0),
        "my-model": ModelPrice(input_usd_per_mtok=1, output_usd_per_mtok=0),
    }
    assert price_by([Policy(prices=prices)], Usage(model, 10**6)) == found


def test_the_table_comes_before_the_function_and_that_before_the_bundled_table():
    table = {MODEL: ModelPrice(input_usd_per_mtok=1, output_usd_per_mtok=1)}
    usage = Usage(MODEL, 10**6)
    assert price_by([Policy(prices=table, price_of=lambda *_: 2)], usage) == 1
    assert price_by([Policy(price_of=lambda *_: 2)], usage) == 2
    assert price_by([Policy(price_of=lambda *_: None)], usage) == price(usage)
    assert price_by([Policy(price_of=lambda *_: None), Policy(price_of=lambda *_: 3)], usage) == 3


def test_the_function_is_given_usage_and_provider():
    asked = []
    usage = Usage("m", 1, 2, 3)
    assert price_by([Policy(price_of=lambda *given: asked.append(given) or 0.25)], usage, "acme") == Decimal("0.25")
    assert asked == [(usage, "acme")]


@pytest.mark.parametrize("said", [-1, float("nan"), "0.1", True, [1], object()], ids=range(6))
def test_rubbish_from_the_function_is_counted_and_the_price_is_unknown(said):
    with capture() as seen:
        assert price_by([Policy(price_of=lambda *_: said)], Usage(MODEL, 10)) is None
    assert seen.value("loopwatch.guard.errors", stage="price") == 1


def test_a_function_that_raises_is_counted_and_the_price_is_unknown():
    with capture() as seen:
        assert price_by([Policy(price_of=lambda *_: 1 / 0)], Usage(MODEL, 10)) is None
    assert seen.value("loopwatch.guard.errors", stage="price") == 1


async def _async_price(usage, provider):
    return 1


@pytest.mark.parametrize("function", [3, "price", _async_price], ids=["number", "text", "async"])
def test_what_is_no_function_is_refused(function):
    with pytest.raises(PolicyError, match="price_of"):
        Policy(price_of=function)


@pytest.mark.parametrize("prices", [[], {"": D4}, {3: D4}, {"m": 3}, {"m": {"input_usd_per_mtok": 3}}, None])
def test_what_is_no_table_is_refused(prices):
    with pytest.raises(PolicyError, match="prices"):
        Policy(prices=prices)


def test_a_policy_with_prices_pickles_and_nobody_changes_it():
    policy = Policy(prices={"m": FULL})
    assert pickle.loads(pickle.dumps(policy)).prices == {"m": FULL}
    with pytest.raises(TypeError):
        policy.prices["m"] = D4


# --- what holds for any price -----------------------------------------------------------------------------------------

counts = st.integers(0, 10**9)
rates = st.decimals(0, 1000, places=6)
model_prices = st.builds(
    ModelPrice,
    input_usd_per_mtok=rates,
    output_usd_per_mtok=rates,
    cached_input_usd_per_mtok=st.none() | rates,
    cache_write_usd_per_mtok=st.none() | rates,
    reasoning_usd_per_mtok=st.none() | rates,
)


def exclusive(read, cached, stored, answer, thought):
    return Usage.from_exclusive(
        "m",
        input_tokens=read,
        cached_input_tokens=cached,
        cache_write_input_tokens=stored,
        output_tokens=answer + thought,
        reasoning_output_tokens=thought,
    )


@given(model_prices, st.tuples(*[counts] * 5), st.integers(0, 4), counts)
def test_more_tokens_never_cost_less(each, tokens, which, more):
    larger = [count + (more if number == which else 0) for number, count in enumerate(tokens)]
    assert each.price(exclusive(*tokens)) <= each.price(exclusive(*larger))


@given(model_prices, st.tuples(*[counts] * 5), st.tuples(*[counts] * 5))
def test_two_calls_cost_what_one_with_the_sum_of_their_tokens_costs(each, one, other):
    both = [left + right for left, right in zip(one, other, strict=True)]
    assert each.price(exclusive(*one)) + each.price(exclusive(*other)) == each.price(exclusive(*both))


@given(model_prices, st.tuples(*[counts] * 5))
def test_the_applications_decimal_context_changes_no_price(each, tokens):
    usage = exclusive(*tokens)
    exact = each.price(usage)
    with localcontext() as context:
        context.prec = 3
        context.traps[Inexact] = True
        assert each.price(usage) == exact


@given(st.decimals(allow_nan=True, allow_infinity=True) | st.floats() | st.integers() | st.booleans() | st.text())
def test_d3_what_is_an_amount_can_be_summed(value):
    usd = amount(value)
    assert usd is None or 0 <= usd < MAX_COUNT
    if usd is not None:
        assert abs(usd - Decimal(str(value))) < Decimal("1e-24")


def test_d3_an_amount_of_a_thousand_digits_is_rounded_to_24_decimals():
    assert amount(Decimal("0." + "3" * 1000)) == Decimal("0." + "3" * 24)


# --- the bundled table ------------------------------------------------------------------------------------------------


def test_d4_cached_tokens_are_billed_once_at_their_own_rate():
    usd = price(Usage(MODEL, input_tokens=1000, output_tokens=50, cached_input_tokens=400))
    assert usd == 600 * PLAIN + 400 * CACHED + 50 * OUT
    assert CACHED < PLAIN


def test_d4_the_table_says_what_a_token_costs():
    # As the vendor publishes them: a change of the snapshot shows here.
    per_million = [each * 1_000_000 for each in (PLAIN, CACHED, OUT)]
    assert per_million == [Decimal("0.15"), Decimal("0.075"), Decimal("0.6")]


def test_d4_more_cached_than_sent_is_never_billed_below_zero():
    assert price(Usage(MODEL, input_tokens=10, cached_input_tokens=400)) == 400 * CACHED


def test_d4_tokens_written_to_a_cache_have_their_own_rate():
    usage = Usage.from_exclusive(
        "claude-opus-4-5",
        input_tokens=10**6,
        cached_input_tokens=10**6,
        cache_write_input_tokens=10**6,
        output_tokens=10**6,
    )
    assert price(usage._replace(input_tokens=3 * 10**6)) == Decimal(5) + Decimal("0.5") + Decimal("6.25") + Decimal(25)


def test_the_price_is_decimal_and_zero_tokens_cost_nothing():
    usd = price(Usage(MODEL))
    assert isinstance(usd, Decimal)
    assert usd == 0


def test_reasoning_is_a_part_of_the_output():
    with_it = Usage("perplexity/sonar-deep-research", 0, 10**6, reasoning_output_tokens=10**6)
    assert price(with_it, "openrouter") == 3
    assert price(with_it._replace(reasoning_output_tokens=0), "openrouter") == 8


def test_a_fee_for_each_call_is_charged():
    assert price(Usage("sonar", 10**6), "perplexity") == Decimal("1.012")


def test_long_prompts_have_dearer_rates():
    at, above = (price(Usage("gpt-5.5", tokens, 1000)) for tokens in (272_000, 272_001))
    assert at == Decimal("1.39")
    assert above == Decimal("2.76501")


def test_what_is_sold_by_the_hour_has_no_price_by_the_token():
    assert price(Usage("whisper-1", 1000), "openai") is None
    assert price(Usage("whisper-1"), "openai") == 0


def test_a_provider_may_be_named():
    assert price(Usage(MODEL, output_tokens=7), provider="openai") == 7 * OUT


USAGES = [
    (1000, 50, 0, 0),
    (1000, 50, 400, 200),
    (200_000, 1, 0, 0),
    (200_001, 9, 100, 0),
    (272_001, 1, 272_000, 1),
    (0, 0, 0, 0),
]


def test_every_id_of_the_snapshot_has_the_price_that_genai_prices_says():
    wrong, by_the_hour = [], set()
    for (provider, model), (read, written, cached, stored) in itertools.product(MODELS, USAGES):
        ours = price(Usage(model.id, read, written, cached, cache_write_input_tokens=stored), provider.id)
        counted = genai_prices.Usage(
            input_tokens=read, output_tokens=written, cache_read_tokens=cached, cache_write_tokens=stored
        )
        theirs = model.calc_price(counted, provider).total_price
        if ours is None and theirs == 0:
            by_the_hour.add(model.id)
        elif ours != theirs:
            wrong.append((provider.id, model.id, ours, theirs))
    assert len(MODELS) > 1000
    assert wrong == []
    # A guess at what these are called: speech, transcription, pages and characters.
    words = ("whisper", "tts", "transcribe", "voxtral", "ocr", "orpheus", "realtime", "live", "voice")
    assert {each for each in by_the_hour if not any(word in each for word in words)} == set()


def test_d2_an_id_that_goes_on_is_another_model():
    """Whatever the table matches by, an id followed by a letter or a word has no price."""
    ids = {provider.id: {model.id.lower() for model in provider.models} for provider, _ in MODELS}
    priced = [
        (provider.id, name)
        for (provider, model), suffix in zip(MODELS, itertools.cycle(("x", "-zz", ".zz9")), strict=False)
        for name in [model.id + suffix]
        if not model.id.startswith("ft:")
        and not model.id.endswith(".ft-")
        and name.lower() not in ids[provider.id]
        and price(Usage(name, 10), provider.id) is not None
    ]
    assert priced == []


@pytest.mark.parametrize(
    "name, same",
    [
        ("claude-opus-4.1", "claude-opus-4-1"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-thinking", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("Claude-Sonnet-4-5", "claude-sonnet-4-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5-20250807", "gpt-5"),
        ("openai/gpt-5", "gpt-5"),
        ("openrouter/openai/gpt-5", "gpt-5"),
        ("litellm/openai/gpt-5-2025-08-07", "gpt-5"),
        (" gpt-5 ", "gpt-5"),
        ("gpt-35-turbo", "gpt-3.5-turbo"),
        ("o3-mini-high", "o3-mini"),
        ("models/gemini-2.5-flash", "gemini-2.5-flash"),
        ("publishers/google/models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("gemini-2.5-pro-preview-06-05", "gemini-2.5-pro"),
        ("mistral-large-latest", "mistral-large-latest"),
    ],
)
def test_d2_a_revision_and_a_way_to_it_are_the_same_model(name, same):
    usage = Usage(None, 1000, 100, 10)
    usd = price(usage._replace(model=name))
    assert usd is not None
    assert usd == price(usage._replace(model=same))


@pytest.mark.parametrize(
    "name, provider",
    [
        ("us.anthropic.claude-opus-4-1-20250805-v1:0", "aws"),
        ("anthropic.claude-3-5-sonnet-20241022-v2:0", "aws"),
        ("bedrock/us.anthropic.claude-3-haiku-20240307-v1:0", "aws"),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-sonnet-4-20250514-v1:0", "aws"),
        ("us.amazon.nova-pro-v1:0", "aws"),
        ("amazon.nova-lite-v1:0", "aws"),
        ("azure/gpt-4o", "azure"),
        ("groq/llama-3.3-70b-versatile", "groq"),
        ("ft:gpt-4o-2024-08-06:acme::7p4lURel", "openai"),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "fireworks"),
    ],
)
def test_a_name_may_say_who_sells_it(name, provider):
    found = catalogue.current().find(name, None)
    assert found is not None
    assert found[0].id == provider


@pytest.mark.parametrize(
    "name, provider, seller",
    [
        ("gpt-4o", "azure.ai.openai", "azure"),
        ("gpt-4o", "az.ai.inference", "azure"),
        ("claude-sonnet-4-5", "azure", "azure"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "aws.bedrock", "aws"),
        ("claude-sonnet-4@20250514", "gcp.vertex_ai", "google"),
        ("gemini-2.5-flash", "gcp.gen_ai", "google"),
        ("gemini-2.5-flash", "google-gla", "google"),
        ("grok-4", "x_ai", "x-ai"),
        ("gpt-5", "OpenAI", "openai"),
        # The client library of OpenAI speaks to others as well.
        ("claude-sonnet-4-5", "openai", "anthropic"),
        ("gpt-4o", "strands-agents", "openai"),
        ("gpt-4o", "_OTHER", "openai"),
    ],
)
def test_providers_are_known_by_the_names_that_libraries_give_them(name, provider, seller):
    found = catalogue.current().find(name, provider)
    assert found is not None
    assert found[0].id == seller
    assert price(Usage(name, 10), provider) is not None


@pytest.mark.parametrize(
    "model",
    [
        "claude-opus-4.1x",
        "claude-opus-4-10",
        "claude-opus-4-1-mini",
        "claude-opus-9",
        "gpt-4o-mini-foo",
        "gpt-5-nano-tiny",
        "gpt-7",
        "gemini-1.5-flash-8b",
        "gemini-2.5-pro-ultra",
        "my-gpt-4o",
        "nobody/gpt-4o",
        "meta-llama/Llama-3.3-70B-Instruct",
        "us.anthropic.claude-opus-4-1-20250805-v1:0-x",
        "my-deployment",
        "command-x",
    ],
)
def test_d2_a_made_up_model_has_no_price(model):
    assert price(Usage(model, input_tokens=10)) is None


@pytest.mark.parametrize(
    "model",
    [None, "", "no-such-model", "gpt-4o-mini\0", "ü" * 300, "a" * 1_000_000, "../../etc/passwd", "(" * 200, 7, b"x"],
)
def test_an_unknown_model_has_no_price(model):
    assert price(Usage(model, input_tokens=10)) is None


@pytest.mark.parametrize("provider", ["vllm", "Ollama", "x" * 10_000, 7])
def test_what_runs_on_machines_of_ones_own_has_no_price(provider):
    assert price(Usage(MODEL, input_tokens=10), provider=provider) is None


@pytest.mark.parametrize("provider", ["acme-gateway", "scripted", ""])
def test_of_a_provider_that_nobody_knows_the_name_of_the_model_is_left(provider):
    assert price(Usage(MODEL, input_tokens=10), provider=provider) == price(Usage(MODEL, input_tokens=10))
    assert price(Usage("acme-large", input_tokens=10), provider=provider) is None


@pytest.mark.parametrize(
    "counts", [{"input_tokens": -1}, {"output_tokens": -1}, {"input_tokens": "10"}, {"output_tokens": float("nan")}]
)
def test_impossible_counts_have_no_price(counts):
    assert price(Usage(MODEL, **counts)) is None


names = st.text(max_size=300) | st.text("claudegpt0123456789-./:@", max_size=40)


@given(names, st.none() | names, st.integers(-5, 10**12))
def test_it_never_raises(model, provider, tokens):
    usd = price(Usage(model, input_tokens=tokens), provider)
    assert usd is None or usd >= 0


@given(names, st.none() | names, st.integers(1, 10**12))
def test_an_estimate_is_never_nothing(model, provider, tokens):
    assert estimate(Usage(model, input_tokens=tokens), provider) > 0


def test_relatives_are_those_with_the_longest_beginning_in_common():
    def kin(name):
        return {model.id for _, model in catalogue.current().relatives(name, None)}

    assert kin("grok-4-fast-zz") == {"grok-4-fast-reasoning", "grok-4-fast-non-reasoning"}
    mini = kin("gpt-4o-mini-foo")
    assert "gpt-4o-mini" in mini
    assert all(each.startswith("gpt-4o-mini") for each in mini)
    assert kin("nobodys-model") == set()


def test_a_clause_that_is_not_known_is_taken_at_its_word():
    class Younger:
        def is_match(self, name):
            return name == "m-7"

    assert catalogue._names(Younger(), "m-7")
    assert not catalogue._names(Younger(), "m-8")


def test_look_ups_are_remembered_and_made_up_names_fill_no_memory(monkeypatch):
    monkeypatch.setattr(catalogue, "MAX_REMEMBERED", 5)
    table = catalogue.Catalogue(data_snapshot.get_snapshot())
    for number in range(23):
        table.find(f"gpt-{number}x", None)
        table.relatives(f"gpt-{number}x", None)
    assert len(table._found) <= 5
    assert len(table._kin) <= 5
    assert table.find(MODEL, None) is table.find(MODEL, None)


def test_an_updated_table_is_the_one_that_counts():
    before = price(Usage(MODEL, 10**6))
    bundled = data_snapshot.get_snapshot()
    only = [provider for provider in bundled.providers if provider.id != "openai"]
    data_snapshot.set_custom_snapshot(data_snapshot.DataSnapshot(providers=only, from_auto_update=True))
    try:
        assert price(Usage(MODEL, 10**6)) is None
        assert price(Usage("ft:gpt-4o-2024-08-06:a", 10**6)) is None
    finally:
        data_snapshot.set_custom_snapshot(None)
    assert price(Usage(MODEL, 10**6)) == before


def test_the_table_is_imported_on_first_use():
    script = "import sys, otel_loopwatch.pricing; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# --- estimates --------------------------------------------------------------------------------------------------------

MILLION = Usage(None, 10**6, 10**6)


@pytest.mark.parametrize(
    "model, provider, like",
    [
        # What genai-prices would have taken it for.
        ("claude-opus-4.1x", None, "claude-opus-4-1"),
        # The dearest of its family.
        ("claude-opus-9", None, "claude-opus-4-1"),
        # The model itself, of a date that the table does not have, and sold by somebody unknown.
        ("gpt-5-2031-01-01", None, "gpt-5"),
        ("gpt-4o", "vllm", "gpt-4o"),
    ],
)
def test_d2_an_estimate_is_that_of_the_nearest_by_name(model, provider, like):
    assert price(MILLION._replace(model=model), provider) is None
    assert estimate(MILLION._replace(model=model), provider) == price(MILLION._replace(model=like))


@pytest.mark.parametrize("model", ["nobodys-model-9", "gpt-7", "", None, "a" * 300])
def test_d2_without_a_relative_it_is_a_frontier_models(model):
    assert estimate(MILLION._replace(model=model)) == FRONTIER.price(MILLION) == 60


def test_the_frontier_rate_is_that_of_the_dearest_models_for_general_use():
    for model in ("gpt-6-astra", "claude-fable-5"):
        usage = Usage(model, 1000, 100, 300, cache_write_input_tokens=200)
        assert price(usage) == FRONTIER.price(usage)


def test_a_free_relative_makes_no_estimate_free():
    assert price(Usage("gemma-3", 10**6), "google") == 0
    assert estimate(Usage("gemma-3-omega", 10**6), "google") == 10


def test_a_faulty_table_costs_no_more_than_the_estimate(monkeypatch):
    monkeypatch.setattr(catalogue, "current", lambda: 1 / 0)
    with capture() as seen:
        assert estimate(MILLION._replace(model="x")) == 60
        assert price(MILLION._replace(model="gpt-5")) is None
    assert seen.value("loopwatch.guard.errors", stage="price") == 1


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "known, tail, same",
    [
        ("gpt-4o", "", True),
        ("gpt-4o", "-2024-08-06", True),
        ("gpt-4o", "-latest", True),
        ("gpt-4o", "@latest", True),
        ("gpt-4", "-0613", True),
        ("claude-3-5-haiku", "-20241022-v1:0", True),
        ("claude-sonnet-4-2025", "0514", True),
        ("gemini-2.0-flash-0", "01", True),
        ("gpt-5-nano-", "2025-08-07", True),
        ("ft:gpt-4o-2024-", "08-06:acme:my-name:1", True),
        ("gpt-4o", "-mini", False),
        ("gpt-4o", "x", False),
        ("gpt-4", "1", False),
        ("gpt-4", ".1", False),
        ("claude-opus-4-1", "0", False),
        ("gpt-4o", "2024-08-06", False),
        ("gpt-4o", "-", False),
        ("4", "0", False),
    ],
)
def test_what_is_a_revision(known, tail, same):
    assert is_revision(known, tail) is same


@pytest.mark.parametrize(
    "head, says",
    [("", True), ("openai/", True), ("a/b/us.anthropic.", True), ("eu.", True), ("my-", False), ("x", False)],
)
def test_what_may_stand_in_front(head, says):
    assert is_prefix(head) is says


@pytest.mark.parametrize(
    "one, other",
    [
        ("gpt-5", "gpt-5-2025-08-07"),
        ("openai/gpt-5", "GPT-5"),
        ("claude-sonnet-4", "us.anthropic.claude-sonnet-4-20250514-v1:0"),
        ("claude-sonnet-4.5", "anthropic/claude-sonnet-4-5@20250929"),
        ("gemini-2.5-pro", "models/gemini-2.5-pro-preview-06-05"),
        ("gpt-4.1", "gpt-4.1-2025-04-14"),
    ],
)
def test_two_names_of_one_model_have_one_bare_name(one, other):
    assert bare(one) == bare(other)


@pytest.mark.parametrize(
    "one, other", [("gpt-5", "gpt-5-mini"), ("gpt-4.1", "gpt-4"), ("gpt-4.1", "gpt-4o"), ("llama3.1", "llama3.2")]
)
def test_two_models_have_two_bare_names(one, other):
    assert bare(one) != bare(other)


@given(names)
def test_any_name_has_a_bare_one(name):
    assert isinstance(bare(name), str)
