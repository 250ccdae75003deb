"""Whose names these are in Kafka: what an installation writes down of itself, and what it says where it is a stranger. Pure.

An installation is a set of workers over one database. Two of them that share a consumer group or a topic of their own take
each other's partitions and mix their numbers, and all of it looks healthy; so each writes down which names it uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

SHAREABLE = frozenset({"kafka.dead_letter_topic"})
"""Settings whose name may be shared: dead letters say where they come from. Named only beside others."""


class Claim(msgspec.Struct, frozen=True):
    """Names that an installation uses for itself. JSON on the wire; fields that a later release adds are passed over."""

    installation: str
    names: dict[str, str]
    """Name by setting, such as `kafka.group_id`."""
    since_ns: int = 0
    """When it was first written down, by the clock of who wrote it."""

    def to_metadata(self) -> str:
        """As it stands in the metadata of a commit."""
        return msgspec.json.encode(self).decode()


_decode = msgspec.json.Decoder(Claim).decode


def from_metadata(text: str) -> Claim | None:
    """Inverse of `Claim.to_metadata`; None for anything else, which claims nothing."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return None


def refusal(own: Collection[str], mine: Iterable[Claim], found: Iterable[Claim]) -> str:
    """One line for a stranger: whose names these are, and which settings to change; empty where they are free.

    `own`: every id of this installation, the one that it shows first; `mine`: what it wants; `found`: what is written down.
    """
    wanted = {setting: name for claim in mine for setting, name in claim.names.items()}
    taken: dict[str, str] = {}
    others: set[str] = set()
    for claim in found:
        if claim.installation in own:
            continue
        clash = {setting: name for setting, name in wanted.items() if claim.names.get(setting) == name}
        if clash.keys() - SHAREABLE:
            others.add(claim.installation)
            taken |= clash
    if not others:
        return ""
    names = ", ".join(f"{setting} = {taken[setting]}" for setting in sorted(taken))
    whose = " and ".join(sorted(others))
    return (
        f"installation {next(iter(own), '')} is not {whose}, to which these names in Kafka belong: {names}; "
        f"give this one other names, or, if it is {whose} over a new database, set kafka.installation = {whose}"
    )
