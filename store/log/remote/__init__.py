"""Runs on object storage: how one gets there while it is written, and how it is read there."""
