"""``loopwatch run``: another program's Python process, guarded from its first line and without a change of its code.

:mod:`~otel_loopwatch.launch.command` looks at the command and replaces this process by it, with a folder of ours first
on ``PYTHONPATH``. The ``sitecustomize`` in there is what Python imports before anything of the program; it takes every
trace of itself out of the environment again and hands over to :mod:`~otel_loopwatch.launch.child`.
"""
