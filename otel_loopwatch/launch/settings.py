"""What ``loopwatch run`` hands over to the process that it starts: one environment variable, gone when it is read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

__all__ = ["VARIABLE", "Settings"]

VARIABLE = "LOOPWATCH_LAUNCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The options of one launch.

    Attributes:
        report: Absolute path of the JSON report; ``None`` writes none.
        prometheus_port: TCP port of ``/metrics``, 0 for a free one; ``None`` serves none.
        service_name: ``service.name`` of the telemetry; ``None`` leaves it to ``OTEL_SERVICE_NAME``.
        pythonpath: ``PYTHONPATH`` as it was, to be put back for the program and its children.
    """

    report: str | None = None
    prometheus_port: int | None = None
    service_name: str | None = None
    pythonpath: str | None = None

    def encode(self) -> str:
        """The value of the variable."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Settings:
        """The settings in the value of the variable.

        Raises:
            ValueError: Where *text* is none: another version of this package may have written it.
        """
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None

    def over(self, outer: Settings | None) -> Settings:
        """These, with what they leave open taken from *outer*: ``loopwatch run -- loopwatch run -- python x``."""
        if outer is None:
            return self
        return Settings(
            report=self.report if self.report is not None else outer.report,
            prometheus_port=self.prometheus_port if self.prometheus_port is not None else outer.prometheus_port,
            service_name=self.service_name if self.service_name is not None else outer.service_name,
            pythonpath=self.pythonpath,
        )
