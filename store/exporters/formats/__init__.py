"""One file a format that a run can be exported to."""
