"""`citegauge rules`: the file is whole, speaks of series that exist, and leads to pages that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from click.testing import CliRunner

from citegauge.adapters.rolling import RollTier, View, window_row
from citegauge.cli import cli
from citegauge.domain.compare import Part, like_for_like
from citegauge.domain.cusum import Cusum
from citegauge.domain.distribution import fraction_key, histogram_key
from citegauge.domain.intervals import Moments, wilson
from citegauge.domain.pane import Tally
from citegauge.domain.recall import Group, State
from citegauge.domain.shift import Shift
from citegauge.domain.signals import Signal
from citegauge.domain.window import WINDOWS, RollUp, roll_up
from citegauge.errors import ConfigError
from citegauge.metrics import BY_NAME, Sample
from citegauge.section_alerts import AlertSettings
from citegauge.sections import WebSettings
from citegauge.settings import load
from citegauge.tools.rules import alerts, rule_file
from citegauge.tools.rules.links import links
from citegauge.tools.samples import roll_samples, signal_samples, window_samples

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "prometheus" / "rules" / "citegauge.yml"
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTMANAGER = ROOT / "deploy" / "alertmanager" / "alertmanager.yml"
ALERTS = alerts(AlertSettings())
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
AMTOOL = pytest.mark.skipif(
    shutil.which("amtool") is None, reason="amtool comes with Debian's package prometheus-alertmanager"
)
SELECTOR = re.compile(r"(?<![\w:])((?:\w+:)?citegauge_\w+(?::\w+)?)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def selectors() -> list[tuple[str, list[tuple[str, str, str]]]]:
    """(series, matchers) of every selector in every expression, and in the texts that look up numbers."""
    texts = [rule["expr"] for rule in RULES]
    texts += [rule["annotations"]["description"].replace('\\"', '"') for rule in RULES if "alert" in rule]
    return [(name, MATCHER.findall(inside)) for text in texts for name, inside in SELECTOR.findall(text)]


def test_the_committed_file_is_what_the_command_writes(tmp_path: Path) -> None:
    """Compose mounts the rules of the default settings; with -o they go to a file, else to standard output."""
    target = tmp_path / "rules.yml"
    assert CliRunner().invoke(cli, ["rules", "-o", str(target)]).exit_code == 0
    assert target.read_text() == FILE.read_text()
    assert CliRunner().invoke(cli, ["rules"]).output == FILE.read_text()


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """One line that names the file, not a traceback."""
    refused = CliRunner().invoke(cli, ["rules", "-o", str(tmp_path / "none" / "rules.yml")])
    assert isinstance(refused.exception, ConfigError)
    assert "none/rules.yml" in str(refused.exception)


def test_settings_reach_the_rules(tmp_path: Path) -> None:
    """A threshold and the addresses of the links come from the settings file."""
    config = tmp_path / "c.toml"
    config.write_text(
        '[alerts]\nlag_records = 7\nrunbook_base_url = "https://wiki/rag/"\njob = "rag"\n'
        '[web]\npublic_url = "https://gauge.example.com/rag"\n'
    )
    text = CliRunner().invoke(cli, ["rules", "--config", str(config)]).output
    assert "(citegauge_position_lag_records) > 7" in text
    assert 'runbook_url: "https://wiki/rag/recall-drop.md"' in text
    assert 'dashboard_url: "https://gauge.example.com/rag/#/group?route={{ $labels.route' in text
    assert 'up{job="rag"}' in text


@pytest.mark.parametrize("setting", ["alerts.runbook_base_url", "alerts.dashboard_base_url", "web.public_url"])
@pytest.mark.parametrize(
    "address", ["docs/runbooks/", "/runbooks/", "//host/", "ftp://host/", 'https://a"b/', "https:///"]
)
def test_a_link_that_leads_nowhere_is_refused(setting: str, address: str, tmp_path: Path) -> None:
    """A relative address is dead in a pager; one line says which setting it is."""
    section, _, name = setting.partition(".")
    config = tmp_path / "c.toml"
    config.write_text(f"[{section}]\n{name} = '{address}'\n")
    refused = CliRunner().invoke(cli, ["rules", "--config", str(config)])
    assert isinstance(refused.exception, ConfigError)
    assert setting in str(refused.exception)
    assert "absolute address" in str(refused.exception)
    assert "\n" not in str(refused.exception)


def test_links_lead_to_the_worker(tmp_path: Path) -> None:
    """Of the defaults to its port, else to where it is said to be; a port that nobody knows beforehand is refused."""
    alerts_ = AlertSettings()
    assert links(alerts_, WebSettings(port=7)) == ("http://127.0.0.1:7/runbooks/", "http://127.0.0.1:7/")
    for given in ("https://a/b", "https://a/b/"):
        assert links(alerts_, WebSettings(port=0, public_url=given)) == ("https://a/b/runbooks/", "https://a/b/")
    both = AlertSettings(runbook_base_url="https://w/", dashboard_base_url="https://d/")
    assert links(both, WebSettings(port=0)) == ("https://w/", "https://d/")
    with pytest.raises(ConfigError, match=r"web\.public_url"):
        links(alerts_, WebSettings(port=0))


@pytest.mark.parametrize(
    "alerts_",
    [
        {"recall_drop_ticket_ratio": 0.3},
        {"ticket_z_min": 6},
        {"job": 'a"b'},
        {"runbook_base_url": "https://wiki"},
        {"traces_min": 3},
        {"late_ratio": 0},
    ],
)
def test_contradictory_settings_are_refused(alerts_: dict[str, Any]) -> None:
    """What would make an alert that never fires, always fires, or is no PromQL, is an error of configuration."""
    with pytest.raises(ConfigError, match="alerts"):
        load(alerts=alerts_)


@pytest.mark.parametrize("rule", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_every_alert_is_complete(rule: dict[str, Any]) -> None:
    """Hold-off, severity, texts with a place or a number, and a runbook that exists and bears its name."""
    assert rule["for"]
    assert rule["keep_firing_for"]
    assert rule["labels"]["severity"] in ({"none"} if rule["alert"] == "CitegaugeWatchdog" else {"page", "ticket"})
    assert rule["labels"]["signal"] in {"quality", "traffic", "pipeline"}
    notes = rule["annotations"]
    assert "{{ $labels." in notes["summary"]
    assert notes["description"]
    base, _, name = notes["runbook_url"].rpartition("/")
    assert base == "http://127.0.0.1:9464/runbooks"
    page = RUNBOOKS / name
    assert notes["dashboard_url"].startswith("http://127.0.0.1:9464/#/")
    assert page.read_text().startswith(f"# {rule['alert']}\n")


@pytest.mark.parametrize("alert", [each for each in ALERTS if each.signal == "quality"], ids=lambda alert: alert.name)
def test_quality_alerts_ask_for_enough_traces(alert: Any) -> None:
    """Each is guarded by the number of the hour, and those that compare by that of the day as well."""
    assert re.search(r":citegauge_\w+_(n|of):1h >= 50\)", alert.expr)
    assert ":before" not in alert.expr or re.search(r":citegauge_\w+_(n|of):before >= 200\)", alert.expr)


def test_names_are_unique_and_runbooks_are_one_each() -> None:
    """One page for each alert, and no page without one; the index links them all."""
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert sorted(alert.runbook for alert in ALERTS) == sorted(pages)
    index = (RUNBOOKS / "README.md").read_text()
    assert all(f"[{alert.name}]({alert.runbook}.md)" in index for alert in ALERTS)


def test_every_series_exists() -> None:
    """A rule on a series that nobody exports never fires, and nobody notices."""
    recorded = {rule["record"] for rule in RULES if "record" in rule}
    for name, matchers in selectors():
        if ":" in name:
            assert name in recorded
        else:
            assert {label for label, _, _ in matchers} <= set(BY_NAME[name].labels), name
    assert recorded <= {name for name, _ in selectors()}, "a recorded series that nothing uses"


def test_every_label_exists() -> None:
    """Groupings name labels that the metrics have, or that Prometheus adds."""
    known = {label for metric in BY_NAME.values() for label in metric.labels} | {"job", "instance", "stage"}
    for rule in RULES:
        for names in re.findall(r"(?:by|on) \(([^)]*)\)", rule["expr"]):
            assert set(names.split(", ")) <= known, rule


def roll_ups(tally: Tally) -> list[RollUp]:
    """All windows of one group, rolled up."""
    group = Group("support", "1-5", "m1", "r7", "reranker:a")
    return list(roll_up([RollUp(window, 0, 3_600, group, tally, 1) for window in WINDOWS]))


def tally() -> Tally:
    """Measured traces, and every kind of others."""
    made = Tally()
    made.recall_counts = {fraction_key(1, 5): 20, fraction_key(3, 5): 20}
    made.score_counts = {histogram_key(0.5): 30, histogram_key(0.75): 10}
    made.states = {State.measured: 40, State.empty_retrieval: 3, State.no_generation: 2, State.nonconformant: 5}
    made.citations, made.hallucinated, made.nonconformant = 100, 7, 5
    return made


def exported() -> list[Sample]:
    """What `/metrics` shows of it."""
    found = roll_ups(tally())
    return list(window_samples(View(rows=tuple(window_row(item, 1) for item in found), roll_ups=tuple(found)), 10))


COMPARED = like_for_like([Part(Moments(400, 0.6, 0.04), Moments(100, 0.5, 0.05))])
SIGNALS = [
    Signal(
        route="support",
        top_k_bucket="1-5",
        scorer="*",
        compared=COMPARED,
        cusum=Cusum(ratio=1.2, since_s=600, n=50, fall=0.2),
        baselines={"24h": Moments(900, 0.6, 0.04)},
        low_confidence=COMPARED,
    ),
    Signal(
        route="support",
        top_k_bucket="1-5",
        scorer="bge",
        compared=COMPARED,
        shift=Shift(ratio=0.4, distance_sd=0.1, fall_sd=0.1, n=100),
    ),
]


def test_signals_are_exported_as_they_are() -> None:
    """Both sides with their errors and numbers, baselines, and the detectors; scores with their spread and scorer."""
    values = {(sample.name, sample.labels[2:]): sample.value for signal in SIGNALS for sample in signal_samples(signal)}
    assert COMPARED is not None
    recall, score = "citegauge_compared_recall_ratio", "citegauge_compared_top1_score"
    assert {labels: value for (name, labels), value in values.items() if name == recall} == {
        ("before",): 0.6,
        ("after",): 0.5,
        ("se_before",): pytest.approx(0.01),
        ("se_after",): pytest.approx((0.05 / 100) ** 0.5),
        ("wander",): 0.0,
    }
    assert values[score, ("bge", "sd")] == pytest.approx(0.2)
    assert values[f"{score}_traces", ("bge", "after")] == 100
    assert values[f"{score}_sign", ("bge",)] == 1
    (distance,) = [x for x in signal_samples(replace(SIGNALS[1], lower_is_better=True)) if x.name == f"{score}_sign"]
    assert distance.value == -1
    assert values["citegauge_compared_recall_traces", ("before",)] == 400
    assert values["citegauge_compared_low_confidence_ratio", ("after",)] == 0.5
    assert values["citegauge_compared_low_confidence_traces", ("after",)] == 100
    assert values["citegauge_baseline_recall_ratio", ("24h", "sd")] == pytest.approx(0.2)
    assert values["citegauge_baseline_recall_traces", ("24h",)] == 900
    assert values["citegauge_detector_ratio", ("*", "recall_cusum")] == 1.2
    assert values["citegauge_detector_ratio", ("bge", "score_shift")] == 0.4


def test_nothing_is_compared_while_the_windows_are_old() -> None:
    """A reader that stands still, or one that catches up, shows its windows, and no comparison to alert on."""
    found = roll_ups(tally())
    rows = tuple(window_row(item, 1) for item in found)
    view = View(as_of_ns=1_000 * 10**9, rows=rows, roll_ups=tuple(found), signals=tuple(SIGNALS))
    roll = cast("RollTier", SimpleNamespace(view=view, unacked=0, unreadable=0, ready=True))
    for age_s, compared in ((0, True), (600, True), (601, False)):
        names = {sample.name for sample in roll_samples(roll, 10, 600.0, (1_000 + age_s) * 10**9)}
        assert "citegauge_cited_chunk_recall_ratio" in names
        assert {"citegauge_compared_recall_ratio", "citegauge_detector_ratio"} <= names or not compared
        assert bool({name for name in names if "_compared_" in name or "_detector_" in name}) == compared


def test_what_is_not_known_is_not_exported() -> None:
    """A roll-up without a past shows no comparison and no detector, rather than 0."""
    assert list(signal_samples(Signal(route="support", top_k_bucket="1-5", scorer="*", compared=None))) == []


def test_every_label_value_exists() -> None:
    """`stat="avg"` would select nothing: each selector on a window or a detector finds something that is exported."""
    windowed = {
        name: metric.labels
        for name, metric in BY_NAME.items()
        if {"window", "side", "detector"} & set(metric.labels) or "_compared_" in name
    }
    samples = [*exported(), *(sample for signal in SIGNALS for sample in signal_samples(signal))]
    checked = 0
    for name, matchers in selectors():
        if name in windowed:
            wanted = {label: value for label, how, value in matchers if how == "="}
            shown = [dict(zip(windowed[name], sample.labels, strict=True)) for sample in samples if sample.name == name]
            assert any(wanted.items() <= labels.items() for labels in shown), (name, wanted)
            checked += 1
    assert checked > 20


def test_what_is_exported_is_what_was_counted() -> None:
    """Mean, spread and shares with their intervals, per window; each share of what the table of metrics says."""
    values = {(sample.name, sample.labels[2:]): sample.value for sample in exported()}
    recall, share = "citegauge_cited_chunk_recall_ratio", "citegauge_window_share_ratio"
    assert values[recall, ("1h", "mean")] == pytest.approx(0.4)
    assert values[recall, ("1h", "sd")] == pytest.approx(0.2 * (40 / 39) ** 0.5)
    half = 1.959964 * 0.2 * (40 / 39) ** 0.5 / 40**0.5
    assert values[recall, ("24h", "mean_lower")] == pytest.approx(0.4 - half)
    assert values[recall, ("24h", "mean_upper")] == pytest.approx(0.4 + half)
    assert values["citegauge_top1_score", ("1h", "reranker:a", "sd")] == pytest.approx(
        0.25 * (30 / 40 * 10 / 39) ** 0.5, rel=0.03
    )
    wholes = {"hallucinated": (7, 100), "nonconformant": (5, 48), "zero_results": (3, 50), "unjoined": (2, 50)}
    for name, (part, whole) in wholes.items():
        assert values[share, ("6h", name, "value")] == part / whole
        assert (values[share, ("6h", name, "lower")], values[share, ("6h", name, "upper")]) == wilson(part, whole)


def test_nothing_measured_has_no_numbers() -> None:
    """A window of unmatched retrievals shows no mean and no share of citations, rather than 0."""
    made = Tally()
    made.states = {State.no_generation: 3}
    found = roll_ups(made)
    view = View(rows=tuple(window_row(item, 1) for item in found), roll_ups=tuple(found))
    shown = {(sample.name, sample.labels[2:]) for sample in window_samples(view, 10)}
    assert not [name for name, _ in shown if name.startswith(("citegauge_cited_chunk", "citegauge_top1"))]
    shares = {labels[1] for name, labels in shown if name == "citegauge_window_share_ratio"}
    assert shares == {"zero_results", "unjoined"}


def test_inhibitions_speak_of_labels_that_alerts_have() -> None:
    """A matcher that selects no alert, or an equality on a label that one side lacks, inhibits nothing or everything."""
    config = yaml.safe_load(ALERTMANAGER.read_text())
    known = [
        {"alertname": a.name, "severity": a.severity, "signal": a.signal, "stalls": "true" if a.stalls else ""}
        for a in ALERTS
    ]
    of_slices = {alert.name for alert in ALERTS if "{{ $labels.route }}" in alert.summary}
    for rule in config["inhibit_rules"]:
        for side in ("source_matchers", "target_matchers"):
            matchers = [MATCHER.fullmatch(matcher).groups() for matcher in rule[side]]  # type: ignore[union-attr]
            hit = [
                labels["alertname"]
                for labels in known
                if all(re.fullmatch(value, labels[label]) for label, _, value in matchers)
            ]
            assert hit, rule
            placed = [name for name in hit if "route" in rule["equal"]]
            assert all("route" in name.lower() or name in of_slices for name in placed), rule


def test_pages_and_tickets_have_receivers() -> None:
    """Every severity is routed to a receiver that exists."""
    config = yaml.safe_load(ALERTMANAGER.read_text())
    receivers = {receiver["name"] for receiver in config["receivers"]}
    assert {config["route"]["receiver"], *(route["receiver"] for route in config["route"]["routes"])} == receivers


@AMTOOL
@pytest.mark.parametrize(
    ("labels", "receiver"),
    [("severity=page", "page"), ("severity=ticket", "ticket"), ("alertname=CitegaugeWatchdog", "watchdog")],
)
def test_amtool_accepts_the_configuration(labels: str, receiver: str) -> None:
    """Alertmanager itself reads the file, and sends each severity where it belongs."""
    for command in (
        ["check-config", str(ALERTMANAGER)],
        [
            "config",
            "routes",
            "test",
            f"--config.file={ALERTMANAGER}",
            f"--verify.receivers={receiver}",
            labels,
        ],
    ):
        done = subprocess.run(["amtool", *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@AMTOOL
def test_the_example_receivers_are_right(tmp_path: Path) -> None:
    """Who takes the signs away has receivers that Alertmanager accepts, and both links in what people read."""
    head, _, rest = ALERTMANAGER.read_text().partition("receivers:\n")
    example = "".join(line.removeprefix("#|") + "\n" for line in rest.splitlines() if line.startswith("#|"))
    tail = rest[rest.index("inhibit_rules:") :]
    path = tmp_path / "alertmanager.yml"
    path.write_text(f"{head}receivers:\n{example}{tail}")
    done = subprocess.run(["amtool", "check-config", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    receivers = {each["name"]: str(each) for each in yaml.safe_load(path.read_text())["receivers"]}
    for name in ("page", "ticket"):
        assert "dashboard_url" in receivers[name]
        assert "runbook_url" in receivers[name]
    assert "webhook_configs" in receivers["watchdog"]


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool comes with Debian's package prometheus")
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    """Prometheus itself reads the file, also with other settings."""
    other = tmp_path / "other.yml"
    other.write_text(rule_file(AlertSettings(job="a.b:c/d", lag_s=0.5, late_ratio=0.5, runbook_base_url="https://x/")))
    for path in (FILE, other):
        done = subprocess.run(["promtool", "check", "rules", str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
