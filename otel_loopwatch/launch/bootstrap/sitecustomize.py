"""Imported by Python before the program that ``loopwatch run`` starts.

It leaves no trace for the program and its children: not in ``PYTHONPATH``, not in ``sys.path``, and the user's own
``sitecustomize`` is imported as if this one were not there.
"""

import json
import os
import sys

VARIABLE = "LOOPWATCH_LAUNCH"  # keep in sync with launch/settings.py, which may turn out not to be importable


def _undo(handed_over: str | None) -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib would be imported for it
    sys.path[:] = [path for path in sys.path if path != here]
    if handed_over is None:
        return
    before = json.loads(handed_over).get("pythonpath")
    if before is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = before


def _import_the_users() -> ImportError | None:
    """Import the ``sitecustomize`` that this one hides; returns what ``site`` is to report of it."""
    ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found] # noqa: F401, PLC0415 - another one than this
    except ImportError as error:
        sys.modules["sitecustomize"] = ours
        return None if error.name == "sitecustomize" else error
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise
    return None


def _start(handed_over: str) -> None:
    try:
        from otel_loopwatch.launch import child  # noqa: PLC0415 - may not be there
    except ImportError as error:
        sys.stderr.write(f"loopwatch: cannot be imported ({error}): the program runs without it\n")
        return
    child.start(handed_over)


_handed_over = os.environ.pop(VARIABLE, None)
_undo(_handed_over)
try:
    _fault = _import_the_users()
finally:
    if _handed_over is not None:
        _start(_handed_over)
if _fault is not None:
    raise _fault
