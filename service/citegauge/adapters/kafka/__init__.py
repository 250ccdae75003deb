"""Kafka: clients with every delivery-relevant default said out loud, the hot tier's loop, and its two outlets.

clients.py    construction of consumer, producer and admin; topics; reading and writing commits
publisher.py  panes, markers and heartbeats to the panes topic; dead letters
writer.py     the bounded buffer in front of ClickHouse
outlet.py     a flush on its way: published, stored, marked closed, committed
hot.py        the loop: getmany → pipeline → publish → commit
"""
