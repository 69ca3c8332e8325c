"""What can go wrong with a run's files. The command line prints each as one line."""

from __future__ import annotations


class StoreError(OSError):
    """A run cannot be read or written. The message names the file, the reason and the way out."""


class NotARunError(StoreError):
    """The folder holds no run."""


class RunExistsError(StoreError):
    """A new run was asked for where there already is something."""


class RunBusyError(StoreError):
    """Another process is writing this run."""


class StoreVersionError(StoreError):
    """The run was written by a newer major version of the store."""


class StoreWriteError(StoreError):
    """Writing failed, for example because the disk is full. Acknowledged steps are safe."""


class AnnotationError(ValueError):
    """A tag, note or name is too long, empty, or not what it must be."""


class QueryError(ValueError):
    """A query is not SQL, names something that does not exist, or is not a pure read."""
