"""`citegauge forget`: reads its arguments, asks the tool, prints."""

from __future__ import annotations

import time
from pathlib import Path

import click

from citegauge import bootstrap
from citegauge.commands.options import config_option
from citegauge.settings import load
from citegauge.tools import forget as forgetting


@click.command(short_help="Delete what is stored of single traces, or of a user's.")
@config_option
@click.option("--trace-id", "trace_ids", multiple=True, metavar="ID", help="In any form; repeatable.")
@click.option(
    "--user", "users", multiple=True, metavar="ID", help="As in the spans; wants privacy.user_hmac_key; repeatable."
)
@click.option("--user-hash", "hashes", multiple=True, metavar="HEX", help="As in trace_users.user_hash; repeatable.")
def forget(config: Path | None, trace_ids: tuple[str, ...], users: tuple[str, ...], hashes: tuple[str, ...]) -> None:
    """Delete the trace rows and late rows of these traces from ClickHouse; minutes and windows hold counts only.

    The topics keep their records until their own retention lets them go: do not read that stretch again (`run
    --rebuild-from`) before, or repeat this afterwards. Of users only keyed hashes are stored, and only with a key.
    """
    if not (trace_ids or users or hashes):
        raise click.UsageError("give --trace-id, --user or --user-hash")
    settings = load(config)
    key = settings.privacy.user_hmac_key.get_secret_value()
    hashes += tuple(forgetting.hash_of(user, key) for user in users)
    name, now_s = settings.clickhouse.database, int(time.time())
    database = bootstrap.open_clickhouse(settings)
    try:
        found: list[forgetting.Forgotten | forgetting.ForgottenUser] = []
        if trace_ids:
            found += forgetting.forget(database, name, trace_ids, now_s)
        found += [forgetting.forget_user(database, name, one, now_s) for one in hashes]
    finally:
        database.close()
    for one in found:
        click.echo(one.said)
        if one.again:
            click.echo(one.again, err=True)
