"""An agent loop with every handle of a run: turns, usage, budgets, hints, temperature, the best result so far.

The model is a stand-in that tries the names of a file one after the other; put your own in its place.

    python examples/guarded_loop.py
"""

from collections.abc import Iterator

import otel_loopwatch as lw

POLICY = lw.Policy(budgets=lw.Budgets(max_steps=8, max_tool_calls=6, max_spend_usd=0.05))
FILES = {"notes-2026.md": "The meeting is on Thursday."}


@lw.watch_tool(kind="read")
def read_file(name: str) -> str:
    if name not in FILES:
        raise FileNotFoundError(name)
    return FILES[name]


def scripted_model() -> Iterator[str]:
    """The names that the model asks for; what it is answered comes in through ``send``."""
    answer = yield "notes.md"
    while not answer.startswith("The meeting"):
        # It insists once more, and changes its mind when it is given a hint.
        answer = yield "notes-2026.md" if lw.is_hint(answer) else "notes.md"


def answer_to(name: str) -> str:
    try:
        return read_file(name)
    except FileNotFoundError:
        return "no such file"


def main() -> None:
    model = scripted_model()
    asked = next(model)
    with lw.watch_run("reader", policy=POLICY, on_abort="return") as run:
        while True:
            turn = run.step()
            temperature = run.sampling(0.1)
            run.record_usage(model="gpt-5-mini", input_tokens=800, output_tokens=20)
            answer = answer_to(asked)
            print(f"turn {turn}, temperature {temperature}: read_file({asked!r}) -> {answer.splitlines()[0]}")
            if not lw.is_hint(answer):
                run.partial = answer
            try:
                asked = model.send(answer)
            except StopIteration:
                break
    outcome = run.outcome
    print(f"{outcome.stop_reason}: {outcome.tool_calls} calls, ${outcome.spend_usd}, result {outcome.partial!r}")


if __name__ == "__main__":
    main()
