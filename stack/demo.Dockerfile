# The demo agents of docker-compose.yml: `loopwatch demo --loop` under `loopwatch run`, which sends what they do by OTLP.
FROM python:3.13.7-slim
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY otel_loopwatch otel_loopwatch
COPY alerts alerts
COPY dashboards dashboards
RUN pip install --no-cache-dir '.[cli]' && useradd --create-home agent
USER agent
WORKDIR /home/agent
CMD ["loopwatch", "run", "--", "python", "-m", "otel_loopwatch", "demo", "--loop"]
