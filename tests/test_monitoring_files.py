"""The rules for Prometheus and the dashboard for Grafana name metrics and labels that exist."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from django_jobqueue import services
from django_jobqueue.prometheus import FAMILIES, metrics_text
from django_jobqueue.services.maintain import fill_minutes
from django_jobqueue.states import DEAD, ELIGIBLE, RUNNING, Hold

FOLDER = Path(__file__).parent.parent / "docs" / "monitoring"
RULES = yaml.safe_load((FOLDER / "jobqueue.rules.yml").read_text())
DASHBOARD = json.loads((FOLDER / "grafana-dashboard.json").read_text())
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
TARGET = {"instance", "job"}  # Prometheus adds these to every sample
VALUES = {"state": {state.value for state in ELIGIBLE | RUNNING | DEAD}, "hold": {hold.value for hold in Hold}}


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in ALERTS)
    yield from (target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    yield from (variable["definition"] for variable in DASHBOARD["templating"]["list"] if "definition" in variable)


EXPRESSIONS = list(expressions())


def samples() -> dict[str, set[str]]:
    """The labels of each sample that a scrape can hold, by its name."""
    suffixes = {"gauge": [""], "counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}
    return {
        name + suffix: {*family.labels, *(("le",) if suffix == "_bucket" else ()), *TARGET}
        for name, family in FAMILIES.items()
        for suffix in suffixes[family.kind]
    }


@pytest.mark.django_db
def test_the_samples_are_those_of_a_scrape(queue, fifo_queue):
    services.send(queue.name)
    fill_minutes(until_now=True)

    scraped = {s.name for f in text_string_to_metric_families(metrics_text().decode()) for s in f.samples}

    assert scraped <= set(samples())


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(expression):
    known = samples()
    names = re.findall(r"\bjobqueue_\w+", expression)
    assert names
    assert set(names) <= set(known)
    common = set[str]().union(*(known[name] for name in names))
    for name, matchers in re.findall(r"(jobqueue_\w+)\{([^}]*)\}", expression):
        for label, operator, value in re.findall(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"', matchers):
            assert label in known[name]
            if operator == "=" and label in VALUES:
                assert value in VALUES[label]
    for labels in re.findall(r"\b(?:by|on)\s*\(([^)]*)\)", expression):
        assert {label.strip() for label in labels.split(",")} <= common


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_brackets_of_an_expression_are_closed(expression):
    opened: list[str] = []
    for char in re.sub(r'"[^"]*"', "", expression):
        if char in "([{":
            opened.append(char)
        elif char in ")]}":
            assert opened
            assert opened.pop() + char in ("()", "[]", "{}")
    assert opened == []


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_a_rule_has_what_prometheus_and_an_operator_need(rule):
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"JobQueue[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert set(rule["annotations"]) == {"summary", "description"}
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= {"queue", *TARGET}
        if "$labels.queue" in text:
            assert any("queue" in samples()[name] for name in re.findall(r"jobqueue_\w+", rule["expr"]))


def test_alerts_have_names_of_their_own():
    names = [rule["alert"] for rule in ALERTS]
    assert len(names) == len(set(names))


def test_the_panels_of_the_dashboard_fit_beside_each_other():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert max(x for x, _ in cells) < 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_the_variables_that_the_dashboard_uses_are_its_own_or_grafanas():
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD)))
    assert used <= {variable["name"] for variable in DASHBOARD["templating"]["list"]} | {"__rate_interval", "__all"}


def test_the_files_are_in_the_sdist():
    root = FOLDER.parent.parent
    sdist = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]

    assert sdist == {"exclude": ["/.ci"]}
