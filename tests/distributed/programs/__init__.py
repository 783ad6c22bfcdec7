"""Programs that end in other ways than well, or begin in other ways than by ``torchrun``."""
