"""The Grafana dashboards: written with grafanalib here, generated into ``generated/`` by ``build.py``."""
