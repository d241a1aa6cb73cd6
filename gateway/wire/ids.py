"""Ids that the server makes."""

from persistence.ids import uuid7 as uuid7
