"""What does each trainer write, and what does each field mean? One file a trainer."""
