"""Certificates and TLS for tests: an authority (made with openssl), Kafka with encrypted listeners, a TLS front for HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import pytest

from citegauge.adapters.embedded import HOST, free_port
from support.kafka import KafkaServer

USER, PASSWORD = "citegauge", "S3NTINEL-broker-password"


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority that nobody else trusts."""

    folder: Path

    @property
    def ca(self) -> Path:
        """Its own certificate."""
        return self.folder / "ca.pem"

    def issue(self, name: str) -> tuple[Path, Path]:
        """(certificate, key) for 127.0.0.1 and localhost."""
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        extensions = self.folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName=IP:{HOST},DNS:localhost\nextendedKeyUsage=serverAuth,clientAuth\n")
        request = self.folder / f"{name}.csr"
        _openssl("req", "-new", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial",
            "-days", "2", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate, key


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def make_authority(folder: Path) -> Authority:
    """A new authority, its files in `folder`. Skips where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    _openssl("req", "-x509", *_KEY, "-days", "2", "-subj", "/CN=test authority",
             "-keyout", folder / "ca.key", "-out", folder / "ca.pem")  # fmt: skip
    return Authority(folder)


@dataclass(frozen=True, slots=True)
class SecureKafka:
    """Apache Kafka that also listens with SASL over TLS, and with TLS that asks for the client's certificate."""

    server: KafkaServer
    sasl_ssl: str
    """`host:port`: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512; user and password as above."""
    ssl: str
    """`host:port`: a client certificate is required."""


_PROPERTIES = """\
listeners=PLAINTEXT://{{host}}:{{broker}},CONTROLLER://{{host}}:{{controller}},SASL_SSL://{{host}}:{sasl},SSL://{{host}}:{tls}
advertised.listeners=PLAINTEXT://{{host}}:{{broker}},SASL_SSL://{{host}}:{sasl},SSL://{{host}}:{tls}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL,SSL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
listener.name.ssl.ssl.client.auth=required
listener.name.sasl_ssl.sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={login}.plain.PlainLoginModule required user_{user}="{password}";
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={login}.scram.ScramLoginModule required;
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={login}.scram.ScramLoginModule required;
"""


def secure_kafka(folder: Path, authority: Authority) -> SecureKafka:
    """A broker that is made, but not started."""
    certificate, key = authority.issue("broker")
    keystore = authority.folder / "broker-keystore.pem"
    keystore.write_text(key.read_text() + certificate.read_text())
    sasl, tls = free_port(), free_port()
    properties = _PROPERTIES.format(
        sasl=sasl, tls=tls, keystore=keystore, ca=authority.ca, user=USER, password=PASSWORD,
        login="org.apache.kafka.common.security",
    )  # fmt: skip
    scram = [f"SCRAM-SHA-{bits}=[name={USER},password={PASSWORD}]" for bits in (256, 512)]
    options = tuple(part for one in scram for part in ("--add-scram", one))
    server = KafkaServer(folder, properties=properties, format_options=options)
    return SecureKafka(server, f"{HOST}:{sasl}", f"{HOST}:{tls}")


class TlsFront:
    """Ends TLS in front of a plain TCP port, in a thread of its own; a context manager."""

    def __init__(self, authority: Authority, target_port: int) -> None:
        certificate, key = authority.issue("front")
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self._target_port = target_port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _start(self) -> None:
        self._loop.set_exception_handler(lambda *_: None)  # clients that do not trust us break off; that is the test
        self._server = await asyncio.start_server(self._serve, HOST, 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            to_reader, to_writer = await asyncio.open_connection(HOST, self._target_port)
            await asyncio.gather(_pump(reader, to_writer), _pump(to_reader, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()
