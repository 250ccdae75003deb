"""Which names in Kafka are this installation's: written down for others to find, and looked at before anything is read.

They stand in the metadata of commits of a group that nobody reads with, `citegauge.installations`, and not in the commits of
the join: a worker of an older release refuses a commit that holds more than it knows, and would stop a rolling upgrade. A
stranger is found before it joins a group, so the first installation is not even disturbed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import chain, repeat

import stamina
from aiokafka import TopicPartition
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from aiokafka.structs import OffsetAndMetadata

from citegauge.adapters.kafka import clients
from citegauge.domain.identity import Claim, from_metadata, refusal
from citegauge.errors import FatalError, RetryableError
from citegauge.settings import Settings

logger = logging.getLogger(__name__)

GROUP = "citegauge.installations"
AGAIN_S = 10.0
"""Of two installations that start at the same moment, the one that wrote first finds the other after so long."""
EVERY_S = 600.0
"""How often it is looked at afterwards, and written again: Kafka forgets a commit that is a week old."""
ANSWER_S_MAX = 20.0


class Installation:
    """This installation, as Kafka knows it."""

    def __init__(self, settings: Settings, role: str, own_ids: Callable[[], Sequence[str]]) -> None:
        """`own_ids` asks ClickHouse, the one to be shown first. Blocking."""
        self._kafka = settings.kafka
        self._names = names_of(settings, role)
        self._own_ids = own_ids
        self._own: Sequence[str] = ()
        self._written = False

    @property
    def id(self) -> str:
        """Its name or its id; empty before the first `claim`."""
        return self._own[0] if self._own else ""

    async def claim(self) -> None:
        """Write down which names it uses.

        Raises `FatalError` when one of them belongs to another installation, `RetryableError` when nobody answers.
        """
        if not self._own:
            await self._read_own()
        async for attempt in stamina.retry_context(
            on=RetryableError, attempts=None, timeout=ANSWER_S_MAX, wait_initial=0.2, wait_max=2.0
        ):
            with attempt:
                await self._claim()

    async def watch(self) -> None:
        """Look again, for ever: another release, or a start at the same moment, may have written meanwhile."""
        for wait_s in chain((AGAIN_S,), repeat(EVERY_S)):
            await asyncio.sleep(wait_s)
            try:
                await self.claim()
            except RetryableError as exc:
                logger.warning("cannot look whether these names in Kafka are still ours: %s", exc)

    async def meet(self, stranger: str, *, just_now: bool) -> bool:
        """Whether a heartbeat of the panes topic comes from this installation; `just_now`: it was sent moments ago.

        Raises `FatalError` when the topic is not ours, or nobody can tell whose it is. Where it is ours, the other is
        refused as soon as it looks, and its heartbeats are passed over. While nobody answers it counts as our own.
        """
        try:
            if stranger not in self._own:
                await self._read_own()
            if stranger in self._own:
                return True
            await self.claim()
        except RetryableError as exc:
            logger.warning("cannot tell whether installation %s is this one: %s", stranger, exc)
            return True
        said = f"installation {stranger} writes heartbeats into kafka.panes_topic {self._kafka.panes_topic}"
        if just_now and not self._written:
            raise FatalError(f"{said}, which {self.id} uses: give one of them another topic")
        logger.warning("%s, which is ours; they are passed over", said)
        return False

    async def _read_own(self) -> None:
        self._own = await asyncio.to_thread(self._own_ids)

    async def _claim(self) -> None:
        claims = {topic: Claim(self.id, names) for topic, names in self._names.items()}
        try:
            found = await clients.timely(self._exchange(claims), ANSWER_S_MAX, f"group {GROUP}")
        except (GroupAuthorizationFailedError, TopicAuthorizationFailedError) as exc:
            logger.warning(
                "cannot say in Kafka whose names these are (%r): another installation with the same ones will not be "
                "noticed before it writes to the panes topic; allow this user to read group %s",
                exc,
                GROUP,
            )
            return
        except KafkaError as exc:
            raise RetryableError(f"cannot read or write group {GROUP}: {exc!r}") from exc
        if line := refusal(self._own, claims.values(), found):
            await self._read_own()  # a worker that has started meanwhile may have added an id
            if line := refusal(self._own, claims.values(), found):
                raise FatalError(line)
            raise RetryableError("an id was added meanwhile")
        self._written = True

    async def _exchange(self, claims: dict[str, Claim]) -> list[Claim]:
        """What is written down; and write our own where nothing stands against it."""
        admin = await clients.admin(self._kafka)
        consumer = clients.consumer(self._kafka, GROUP)
        try:
            await consumer.start()
            places = {TopicPartition(topic, 0): claim for topic, claim in claims.items()}
            consumer.assign(list(places))
            for place in places:
                # It waits until the group is loaded; the admin client takes a group that is not for an empty one.
                await consumer.committed(place)
            offsets = await admin.list_consumer_group_offsets(GROUP)
            found = [claim for at in offsets.values() if (claim := from_metadata(at.metadata or "")) is not None]
            if not refusal(self._own, claims.values(), found):
                await consumer.commit(
                    {place: OffsetAndMetadata(0, claim.to_metadata()) for place, claim in places.items()}
                )
            return found
        finally:
            await consumer.stop()
            await admin.close()


def names_of(settings: Settings, role: str) -> dict[str, dict[str, str]]:
    """By topic under which they are written down: the names that a role must have for itself, by setting.

    Who only joins may read the spans topic of another installation, so that topic is claimed by who writes it.
    """
    kafka, rekey = settings.kafka, settings.rekey
    dead = {"kafka.dead_letter_topic": kafka.dead_letter_topic}
    found: dict[str, dict[str, str]] = {}
    if role != "rekey":
        found[kafka.panes_topic] = {"kafka.group_id": kafka.group_id, "kafka.panes_topic": kafka.panes_topic} | dead
    if role in ("all", "rekey") and rekey.spans_topic in settings.joined_topics():
        found[rekey.spans_topic] = {"rekey.group_id": rekey.group_id, "rekey.spans_topic": rekey.spans_topic} | dead
    return found
