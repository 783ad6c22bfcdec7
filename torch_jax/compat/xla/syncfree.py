"""``torch_xla.amp.syncfree``: optimizers, which look at no value anyway."""

from torch.optim import SGD as SGD
from torch.optim import Adam as Adam
from torch.optim import AdamW as AdamW
