"""What a page of ``docs/`` takes as given, by its name: run before its first block."""
