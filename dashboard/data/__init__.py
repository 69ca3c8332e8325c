"""What do pages read? Tables and records, no widgets."""
