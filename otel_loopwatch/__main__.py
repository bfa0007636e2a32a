"""``python -m otel_loopwatch`` is ``loopwatch``."""

from otel_loopwatch.cli import main

if __name__ == "__main__":
    main()
