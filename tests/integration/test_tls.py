"""TLS and SASL to Kafka, TLS to ClickHouse: the whole worker through them, and what a wrong one says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from citegauge.adapters.clickhouse import HttpTarget, connect
from citegauge.errors import CitegaugeError
from support.clickhouse import ClickHouseFront, child_environment
from support.kafka import KafkaUnavailableError, create_topic, jars, java, unique
from support.tls import PASSWORD, USER, Authority, SecureKafka, TlsFront, make_authority, secure_kafka
from support.worker import Site, WorkerProcess, pairs, produce, traffic
from support.worker_tables import expected, read_topic, stored

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority that signed the servers' certificates."""
    return make_authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[SecureKafka]:
    """A broker with encrypted listeners."""
    try:
        java()
        jars()
    except KafkaUnavailableError as exc:
        pytest.skip(f"no Apache Kafka: {exc}")
    kafka = secure_kafka(tmp_path_factory.mktemp("secure") / "kafka", authority)
    kafka.server.start()
    yield kafka
    kafka.server.stop()


@pytest.fixture(scope="module")
def https(front: ClickHouseFront, authority: Authority) -> Iterator[str]:
    """Address of the shared ClickHouse over TLS."""
    with TlsFront(authority, front.port) as tls:
        yield f"https://127.0.0.1:{tls.port}"


def options(way: str, authority: Authority) -> dict[str, str]:
    """Settings for one way into Kafka."""
    if way == "SSL":
        certificate, key = authority.issue("client")
        own = {"KAFKA__SSL_CERTFILE": str(certificate), "KAFKA__SSL_KEYFILE": str(key)}
    else:
        own = {"KAFKA__SASL_MECHANISM": way, "KAFKA__SASL_USERNAME": USER, "KAFKA__SASL_PASSWORD": PASSWORD}
    return {
        "KAFKA__SECURITY_PROTOCOL": "SSL" if way == "SSL" else "SASL_SSL",
        "KAFKA__SSL_CAFILE": str(authority.ca),
        "CLICKHOUSE__CA_CERT": str(authority.ca),
        **own,
    }


def site_on(secure: SecureKafka, https: str, way: str, authority: Authority, **changes: str) -> Site:
    """A site that reaches everything over TLS, on a new topic of 2 partitions."""
    topic = asyncio.run(create_topic(secure.server.bootstrap_servers, unique("spans"), partitions=2))
    address = secure.ssl if way == "SSL" else secure.sasl_ssl
    return Site(kafka=address, clickhouse=https, topic=topic, options=options(way, authority) | changes)


@pytest.mark.kafka
@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512", "SSL"])
def test_the_worker_runs_over_tls(
    secure: SecureKafka, https: str, authority: Authority, tmp_path: Path, way: str
) -> None:
    """Hot tier, Faust and ClickHouse through TLS, with password or client certificate: the tables are right."""
    site = site_on(secure, https, way, authority)
    plain = secure.server.bootstrap_servers
    produce(plain, site.topic, pairs(traffic(3, minutes=6, per_minute=60, end_ns=time.time_ns())))
    truth = expected(site, read_topic(plain, site.topic))
    database = connect(HttpTarget(url=https, ca_file=authority.ca), "default")
    with WorkerProcess(site, tmp_path) as worker:
        worker.until_ready()
        worker.until(lambda: worker.value("citegauge_window_traces", window="1h") > 0, "windows are published")
        late = truth.late
        worker.until(lambda: stored(database, site.database).late.keys() == late.keys(), "everything is stored")
        assert stored(database, site.database).late == late
        assert worker.end() == 0
    database.close()
    assert PASSWORD not in worker.log
    assert "Traceback" not in worker.log


WRONG = {
    "password": ("PLAIN", {"KAFKA__SASL_PASSWORD": "S3NTINEL-wrong"}, "kafka.sasl_"),
    "scram password": ("SCRAM-SHA-256", {"KAFKA__SASL_PASSWORD": "S3NTINEL-wrong"}, "kafka.sasl_"),
    "authority": ("PLAIN", {"KAFKA__SSL_CAFILE": ""}, "kafka."),
    "no client certificate": ("SSL", {"KAFKA__SSL_CERTFILE": "", "KAFKA__SSL_KEYFILE": ""}, "kafka."),
    "missing authority file": ("PLAIN", {"KAFKA__SSL_CAFILE": "/nowhere/ca.pem"}, "kafka.ssl_cafile"),
    "no certificate in the file": ("SSL", {"KAFKA__SSL_CERTFILE": "/dev/null"}, "kafka.ssl_certfile"),
    "ClickHouse's authority": ("PLAIN", {"CLICKHOUSE__CA_CERT": ""}, "ClickHouse"),
}


@pytest.mark.kafka
@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_one_line(secure: SecureKafka, https: str, authority: Authority, name: str) -> None:
    """A wrong password, authority or certificate ends the start with one line that names where to look, and no secret."""
    way, changes, named = WRONG[name]
    site = site_on(secure, https, way, authority, **changes)
    environment = {key: value for key, value in child_environment().items() if not key.startswith("CITEGAUGE_")}
    done = subprocess.run(
        [sys.executable, "-m", "citegauge", "run"],
        env=environment | site.environment, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode in {1, 2}, done.stderr
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("citegauge: "), done.stderr
    assert named in last
    assert "S3NTINEL" not in done.stdout + done.stderr


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")  # which the user has asked for
def test_clickhouse_over_tls(https: str, authority: Authority, tmp_path: Path) -> None:
    """Its authority's file lets us in, not checking does too, and a certificate that nobody vouches for does not."""
    for target in (HttpTarget(url=https, ca_file=authority.ca), HttpTarget(url=https, verify=False)):
        client = connect(target, "default")
        assert client.query("SELECT 1 AS one") == [{"one": 1}]
        client.close()
    other = make_authority(tmp_path / "other")
    for target in (HttpTarget(url=https), HttpTarget(url=https, ca_file=other.ca)):
        client = connect(target, "default")
        with pytest.raises(CitegaugeError, match=r"(?i)certificate") as caught:
            client.query("SELECT 1")
        assert "\n" not in str(caught.value)
        client.close()
