from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import genai_prices
import pytest
from hypothesis import given
from hypothesis import strategies as st

from otel_loopwatch.calls import Usage
from otel_loopwatch.pricing import price

MODEL = "gpt-4o-mini"


def rate(**tokens: int) -> Decimal:
    return genai_prices.calc_price(genai_prices.Usage(**tokens), MODEL).total_price


PLAIN, CACHED, OUT = (
    rate(input_tokens=1, output_tokens=0),
    rate(input_tokens=1, cache_read_tokens=1, output_tokens=0),
    rate(output_tokens=1),
)


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


def test_the_price_is_decimal_and_zero_tokens_cost_nothing():
    usd = price(Usage(MODEL))
    assert isinstance(usd, Decimal)
    assert usd == 0


def test_a_provider_may_be_named():
    assert price(Usage(MODEL, output_tokens=7), provider="openai") == 7 * OUT


@pytest.mark.parametrize(
    "model",
    [None, "", "no-such-model", "gpt-4o-mini\0", "ü" * 300, "a" * 1_000_000, "../../etc/passwd", "(" * 200, 7, b"x"],
)
def test_an_unknown_model_has_no_price(model):
    assert price(Usage(model, input_tokens=10)) is None


@pytest.mark.parametrize("provider", ["no-such-provider", "", "x" * 10_000, 7])
def test_an_unknown_provider_has_no_price(provider):
    assert price(Usage(MODEL, input_tokens=10), provider=provider) is None


@pytest.mark.parametrize(
    "counts", [{"input_tokens": -1}, {"output_tokens": -1}, {"input_tokens": "10"}, {"output_tokens": float("nan")}]
)
def test_impossible_counts_have_no_price(counts):
    assert price(Usage(MODEL, **counts)) is None


@given(st.text(max_size=300), st.none() | st.text(max_size=300), st.integers(-5, 10**12))
def test_it_never_raises(model, provider, tokens):
    usd = price(Usage(model, input_tokens=tokens), provider)
    assert usd is None or usd >= 0


def test_the_table_is_imported_on_first_use():
    script = "import sys, otel_loopwatch.pricing; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
