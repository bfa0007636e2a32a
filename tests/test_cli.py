"""The command: what goes to stdout and what to stderr, exit codes, signals, pipes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from otel_loopwatch import cli
from otel_loopwatch.version import __version__

COMMAND = [sys.executable, "-W", "error", "-m", "otel_loopwatch"]
DEMO_AGENTS = ["healthy", "identical-retry", "ping-pong", "runaway", "poller"]


@pytest.fixture
def loopwatch(monkeypatch, capsys):
    """Runs the command in this process: (exit code, stdout, stderr)."""

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["loopwatch", *args])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def process(*args: str, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, check=False, timeout=50, **options)


# --- the command itself ---


def test_version(loopwatch):
    assert loopwatch("--version") == (0, f"loopwatch {__version__}\n", "")


def test_help_names_the_commands_and_the_exit_codes(loopwatch):
    code, out, _ = loopwatch("--help")
    assert code == 0
    for word in ("demo", "replay", "check", "--version", "Exit codes"):
        assert word in out


def test_without_a_command_the_help_is_shown(loopwatch):
    code, out, err = loopwatch()
    assert code in (0, 2)
    assert "demo" in out + err


def test_a_wrong_option_is_a_usage_error(loopwatch):
    code, out, err = loopwatch("demo", "--nope")
    assert (code, out) == (2, "")
    assert "--nope" in err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_one_line_says_what_to_install(loopwatch, monkeypatch, missing):
    for name in [name for name in sys.modules if name == "otel_loopwatch.commands" or name.split(".")[0] == missing]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.delattr("otel_loopwatch.commands", raising=False)
    code, out, err = loopwatch("demo")
    assert (code, out) == (2, "")
    assert err == "loopwatch: the command needs typer and rich: pip install otel-loopwatch[cli]\n"


def test_another_missing_module_is_not_mistaken_for_the_extra(loopwatch, monkeypatch):
    monkeypatch.delitem(sys.modules, "otel_loopwatch.commands", raising=False)
    monkeypatch.delattr("otel_loopwatch.commands", raising=False)
    monkeypatch.setitem(sys.modules, "otel_loopwatch.policy", None)
    with pytest.raises(ModuleNotFoundError, match="policy"):
        cli.main()


# --- check ---


def test_check_prints_what_holds_under_a_preset(loopwatch):
    code, out, err = loopwatch("check", "safe")
    assert (code, err) == (0, "")
    assert "budgets.max_tool_calls: 12\n" in out
    assert "budgets.max_spend_usd: 0.50\n" in out
    assert "loops.compare_results: true\n" in out
    assert "max_depth" not in out


def test_check_prints_what_holds_under_a_file(loopwatch, tmp_path):
    file = tmp_path / "loopwatch.yaml"
    file.write_text(
        "mode: observe\n"
        "tools:\n"
        "  retries: {max_attempts: 3, retryable_status: [429, 503]}\n"
        "  per_tool:\n"
        "    poll_job: {kind: poll, max_repeats: 30}\n"
        "  allow: [poll_job, 'kb.*']\n"
    )
    code, out, err = loopwatch("check", str(file))
    assert (code, err) == (0, "")
    for line in (
        "mode: observe",
        "tools.default.retries.max_attempts: 3",
        "tools.default.retries.retryable_status: [429, 503]",
        "tools.per_tool.poll_job.kind: poll",
        "tools.per_tool.poll_job.max_repeats: 30",
        "tools.allow: [poll_job, kb.*]",
    ):
        assert f"{line}\n" in out


@pytest.mark.parametrize(
    "text, says",
    [
        ("budgets: {max_steps: 0}", r"loopwatch\.yaml:1: budgets\.max_steps: must be at least 1"),
        ("mode: enforce\nloops: {max_repeat: 3}", r"loopwatch\.yaml:2: loops\.max_repeat: unknown key"),
    ],
)
def test_a_faulty_policy_is_one_line_with_file_line_and_key(loopwatch, tmp_path, text, says):
    file = tmp_path / "loopwatch.yaml"
    file.write_text(text)
    code, out, err = loopwatch("check", str(file))
    assert (code, out) == (2, "")
    assert re.search(says, err)
    assert err.count("\n") == 1
    assert err.startswith("loopwatch: ")


@pytest.mark.parametrize("name", ["saef", "no/such/policy.yaml", "policy.txt"])
def test_a_policy_that_is_not_there_is_one_line(loopwatch, name):
    code, out, err = loopwatch("check", name)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert name in err


# --- replay ---


def recorded(run_id: str, *results: str, query: str = "x") -> str:
    calls = [{"tool": "search", "args": {"query": query}, "result": result, "error": False} for result in results]
    return json.dumps({"run_id": run_id, "source": "test", "outcome": "unknown", "calls": calls})


LOOP = recorded("a-loop", *["nothing was found in the archive"] * 8)
FINE = recorded("fine", "the page was found in the archive")
LABELS = [
    {"run_id": "a-loop", "source": "test", "label": "loop", "kind": "identical_retry", "first_bad_call_index": 1},
    {"run_id": "fine", "source": "test", "label": "not_loop", "kind": "normal", "first_bad_call_index": None},
]


@pytest.fixture
def runs(tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{LOOP}\n{FINE}\n")
    return file


def test_replay_shows_what_would_have_been_acted_on(loopwatch, runs, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    code, out, err = loopwatch("replay", str(runs))
    assert (code, err) == (0, "")
    row = next(line for line in out.splitlines() if "a-loop" in line)
    assert "hint (repeat)" in row
    assert "loop_detected (repeat)" in row
    assert out.endswith("2 runs played, 0 records skipped\n")


def test_replay_lists_no_run_where_the_limit_is_0(loopwatch, runs):
    code, out, _ = loopwatch("replay", str(runs), "--limit", "0")
    assert code == 0
    assert "a-loop" not in out
    assert "2 runs played" in out


def test_replay_json_is_json_and_nothing_else(loopwatch, runs, tmp_path):
    labels = tmp_path / "labels.jsonl"
    labels.write_text("".join(json.dumps({**label, "confidence": "high"}) + "\n" for label in LABELS))
    code, out, err = loopwatch("replay", str(runs), "--labels", str(labels), "--json")
    told = json.loads(out)
    assert (code, err) == (0, "")
    assert told["runs_played"] == 2
    by_id = {run["run_id"]: run for run in told["runs"]}
    assert by_id["a-loop"]["first_action"]["kind"] == "repeat"
    assert by_id["a-loop"]["abort"]["reason"] == "loop_detected"
    assert by_id["fine"]["first_action"] is None
    assert told["scores"]["first_action"]["recall"] == 1
    assert told["scores"]["first_action"]["false_alarm_rate"] == 0


def test_replay_takes_a_preset_or_a_file_as_its_policy(loopwatch, runs, tmp_path):
    def first_action(policy):
        _, out, _ = loopwatch("replay", str(runs), "--policy", policy, "--json")
        return next(run for run in json.loads(out)["runs"] if run["run_id"] == "a-loop")["first_action"]

    file = tmp_path / "strict.yaml"
    file.write_text("loops: {max_repeats: 1, action: abort}\n")
    assert first_action("debug") == first_action(str(file))
    assert first_action("debug")["call_index"] == 1
    assert first_action("most_agents")["call_index"] == 3


def test_replay_reads_stdin():
    done = process("replay", "-", "--json", input=f"{LOOP}\n{FINE}\n")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["runs_played"] == 2


def test_replay_of_a_broken_line_names_it_scores_the_rest_and_ends_with_1(loopwatch, runs):
    runs.write_text(f"{LOOP}\n{{not json\n{FINE}\n")
    code, out, err = loopwatch("replay", str(runs))
    assert code == 1
    assert re.fullmatch(rf"loopwatch: skipped {re.escape(str(runs))}:2: .+\n", err)
    assert out.endswith("2 runs played, 1 records skipped\n")


def test_replay_names_the_first_skipped_lines_only(loopwatch, runs):
    runs.write_text("broken\n" * 30)
    code, _, err = loopwatch("replay", str(runs))
    assert code == 1
    assert err.count("\n") == 21
    assert err.endswith("loopwatch: skipped 10 more\n")


def test_replay_of_a_file_that_is_not_there_ends_with_1(loopwatch, runs, tmp_path):
    code, out, err = loopwatch("replay", str(tmp_path / "none.jsonl"), str(runs))
    assert code == 1
    assert "none.jsonl" in err
    assert "2 runs played" in out


def test_replay_under_a_policy_that_cannot_be_used_is_2(loopwatch, runs):
    code, out, err = loopwatch("replay", str(runs), "--policy", "saef")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1


# --- demo ---


def test_demo_prints_one_table_and_reports_on_stderr(loopwatch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    code, out, err = loopwatch("demo", "--pace", "0")
    assert code == 0
    rows = [line.split() for line in out.splitlines()[2:]]
    assert [row[0] for row in rows] == DEMO_AGENTS
    assert [row[1] for row in rows] == ["completed", "completed", "loop_detected", "spend_budget", "completed"]
    assert "agent 'identical-retry': loop detected (repeat)" in err
    assert "agent 'runaway': run aborted: spend_budget" in err
    assert "\x1b" not in out + err


def test_demo_on_a_narrow_terminal_breaks_no_word(loopwatch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    code, out, _ = loopwatch("demo", "--pace", "0")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 40
    for word in (*DEMO_AGENTS, "loop_detected", "spend_budget"):
        assert word in out


def test_demo_json_is_json_and_nothing_else(loopwatch):
    code, out, _ = loopwatch("demo", "--pace", "0", "--json")
    told = json.loads(out)
    assert code == 0
    assert [agent["agent"] for agent in told["agents"]] == DEMO_AGENTS
    by_name = {agent["agent"]: agent for agent in told["agents"]}
    assert by_name["ping-pong"]["stop_reason"] == "loop_detected"
    assert by_name["ping-pong"]["calls_refused"] == 1
    assert by_name["identical-retry"]["calls_hinted"] == 1
    assert by_name["runaway"]["spend_usd"] > 0.1
    assert all(agent["spend_complete"] for agent in told["agents"])


def test_demo_takes_a_port_that_is_free_and_says_so_when_it_is_not(loopwatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = loopwatch("demo", "--pace", "0", "--prometheus-port", port)
    assert (code, out) == (2, "")
    assert err.startswith(f"loopwatch: port {port} cannot be had: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_demo_loop_serves_metrics_until_a_signal_and_ends_well(number):
    with subprocess.Popen(
        [*COMMAND, "demo", "--loop", "--json", "--pace", "0.001", "--prometheus-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        page = running.stderr.readline().removeprefix("metrics: ").strip()
        first = json.loads(running.stdout.readline())
        with urllib.request.urlopen(page, timeout=10) as answer:
            metrics = answer.read().decode()
        running.send_signal(number)
        rest, err = running.communicate(timeout=30)
    assert running.returncode == 0, err
    assert first["round"] == 1
    rounds = [json.loads(line)["round"] for line in rest.splitlines()]
    assert rounds == list(range(2, len(rounds) + 2))
    assert 'loopwatch_runs_total{agent="ping-pong",stop_reason="loop_detected"}' in metrics
    assert 'loopwatch_tool_calls_total{agent="identical-retry",outcome="hinted",tool="find_orders"}' in metrics
    assert "python_info" not in metrics
    assert "Traceback" not in err


def test_ctrl_c_without_loop_is_130_and_no_traceback():
    with subprocess.Popen(
        [*COMMAND, "demo", "--pace", "5", "--prometheus-port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr.readline().startswith("metrics: ")
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=30)
    assert (running.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_reader_that_goes_away_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [*COMMAND, "check", "default"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=50
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


def test_no_color_is_heeded_where_colour_is_forced():
    plain = process("demo", "--pace", "0", env={**os.environ, "FORCE_COLOR": "1", "NO_COLOR": "1"})
    coloured = process("demo", "--pace", "0", env={**os.environ, "FORCE_COLOR": "1"})
    red = "\x1b[31m"
    assert red not in plain.stdout
    assert red in coloured.stdout
