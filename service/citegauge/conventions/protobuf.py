"""Protobuf messages described in a table: small schemas that have not changed in years. Not OTLP's, a package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

FieldType = descriptor_pb2.FieldDescriptorProto
Schema: TypeAlias = Mapping[str, tuple[tuple[str, int, int | str, bool], ...]]
"""Message → fields: name, number, scalar type or message name (a dot in it: another package's), repeated."""


def message_class(package: str, schema: Schema, root: str) -> Any:
    """The class of message `root`."""
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{package.replace('.', '/')}.proto",
        package=package,
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"],
    )
    for name, fields in schema.items():
        message = file.message_type.add(name=name)
        for field_name, number, kind, repeated in fields:
            label = FieldType.LABEL_REPEATED if repeated else FieldType.LABEL_OPTIONAL
            field = message.field.add(name=field_name, number=number, label=label)
            if isinstance(kind, str):
                field.type = FieldType.TYPE_MESSAGE
                field.type_name = f".{kind}" if "." in kind else f".{package}.{kind}"
            else:
                field.type = kind  # type: ignore[assignment]  # the enum's members are plain ints
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(Timestamp.DESCRIPTOR.file.serialized_pb)
    pool.AddSerializedFile(Duration.DESCRIPTOR.file.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{root}"))
