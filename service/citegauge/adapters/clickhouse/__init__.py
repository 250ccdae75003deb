"""ClickHouse as a place for rows and a source of answers: `client` speaks to it, `codes` knows what its errors mean."""

from citegauge.adapters.clickhouse.client import TABLES, ClickHouse, EmbeddedTarget, HttpTarget, connect

__all__ = ["TABLES", "ClickHouse", "EmbeddedTarget", "HttpTarget", "connect"]
