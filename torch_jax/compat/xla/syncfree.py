"""``torch_xla.amp.syncfree``: optimizers; none of them reads values on the host."""

from torch.optim import SGD as SGD
from torch.optim import Adam as Adam
from torch.optim import AdamW as AdamW
