"""Which names in Kafka are this installation's: written down for others to find, and looked at before anything is read.

They stand in the metadata of commits of a group that nobody reads with, `citegauge.installations`, and not in the commits of
the join: a worker of an older release refuses a commit that holds more than it knows, and would stop a rolling upgrade. A
stranger is found before it joins a group, so the first installation is not even disturbed.
"""

from __future__ import annotations

import asyncio
import logging
import time
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
"""Two installations that start at the same moment find each other after so long."""
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
        self._since_ns = 0
        """When its names were first written down; 0: this process has not done so."""

    @property
    def id(self) -> str:
        """Its name or its id; empty before the first `claim`."""
        return self._own[0] if self._own else ""

    async def claim(self) -> None:
        """Write down which names it uses.

        Raises `FatalError` when one of them belongs to another installation, `RetryableError` when nobody answers.
        """
        if not self._own:
            await self.read_own()
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
                await self.read_own()
            if stranger in self._own:
                return True
            await self.claim()
        except RetryableError as exc:
            logger.warning("cannot tell whether installation %s is this one: %s", stranger, exc)
            return True
        said = f"installation {stranger} writes heartbeats into kafka.panes_topic {self._kafka.panes_topic}"
        if just_now and not self._since_ns:
            raise FatalError(f"{said}, which {self.id} uses: give one of them another topic")
        logger.warning("%s, which is ours; they are passed over", said)
        return False

    async def read_own(self) -> None:
        """Ask ClickHouse which ids are its own."""
        self._own = await asyncio.to_thread(self._own_ids)

    async def _claim(self) -> None:
        try:
            line = await clients.timely(self._exchange(), ANSWER_S_MAX, f"group {GROUP}")
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
        if line:
            known = self._own
            await self.read_own()  # a worker that has started meanwhile may have added an id
            if set(known) == set(self._own):
                raise FatalError(line)
            raise RetryableError("an id was added meanwhile")

    async def _exchange(self) -> str:
        """Write our names down where nothing stands against it; the line that says what does.

        Whoever has not written yet gives way to everybody, who has to those that were there before: of two that start at the
        same moment one stays.
        """
        admin = await clients.admin(self._kafka)
        consumer = clients.consumer(self._kafka, GROUP)
        try:
            await consumer.start()
            places = {TopicPartition(topic, 0): names for topic, names in self._names.items()}
            consumer.assign(list(places))
            for place in places:
                # It waits until the group is loaded; the admin client takes a group that is not for an empty one.
                await consumer.committed(place)
            # Asked for by name: the embedded broker has no answer to "all of them" that can be read.
            everywhere = [TopicPartition(topic, 0) for topic in {*await admin.list_topics(), *self._names}]
            offsets = await admin.list_consumer_group_offsets(GROUP, partitions=everywhere)
            found = {place: from_metadata(at.metadata or "") for place, at in offsets.items()}
            known = [one.since_ns for place in places if (one := found.get(place)) and one.installation in self._own]
            if self._since_ns:
                known.append(self._since_ns)
            since_ns = min(known, default=time.time_ns())
            claims = {place: Claim(self.id, names, since_ns) for place, names in places.items()}
            before = [one for one in found.values() if one and (not known or one.since_ns < since_ns)]
            line = refusal(self._own, claims.values(), before)
            if not line:
                await consumer.commit({place: OffsetAndMetadata(0, one.to_metadata()) for place, one in claims.items()})
                self._since_ns = since_ns
            return line
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
