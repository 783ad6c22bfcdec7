"""A model that is exported here and runs in a process without PyTorch."""
