"""A decorated tool, a watched run: what a loop looks like to the model, and how it ends.

python examples/quickstart.py
"""

import otel_loopwatch as lw


@lw.watch_tool
def search(query: str, limit: int = 10) -> str:  # noqa: ARG001 - a stand-in for a search that finds nothing
    return "nothing found"


def main() -> None:
    # A stand-in for a model that always makes the same call, whatever it is answered.
    with lw.watch_run("support-agent", on_abort="return") as run:
        while True:
            run.step()
            print(search("refund policy"))
    print(run.outcome.stop_reason, run.outcome.tool_calls, "calls made")


if __name__ == "__main__":
    main()
