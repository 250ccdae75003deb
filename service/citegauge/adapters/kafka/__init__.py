"""Kafka: clients with every delivery-relevant default said out loud, the two readers, and their outlets.

clients.py    construction of consumer, producer and admin; topics; reading and writing commits
ends.py       where logs end, asked of the brokers
rekey.py      the re-key stage's loop: getmany → decode → align → send → commit
places.py     where the stage begins in a source partition
source.py     what was read of a source partition and not sent yet
spans.py      re-keyed spans on their way
installation.py  whose the names in Kafka are
hot.py        the hot tier's loop: getmany → pipeline → publish → commit
starts.py     where the hot tier begins in a partition
outlet.py     a flush on its way: published, stored, marked closed, committed
publisher.py  panes, markers and heartbeats to the panes topic; dead letters
writer.py     the bounded buffer in front of ClickHouse
"""
