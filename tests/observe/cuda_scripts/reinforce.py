"""An agent that samples actions, in the manner of pytorch/examples/reinforcement_learning."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributions import Categorical

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(543)
policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
saved, rewards = [], []
states = torch.randn(6, 4)
for state in states:
    probs = F.softmax(policy(state.to(device)), dim=0)
    m = Categorical(probs)
    assert m.sample().item() in (0, 1)
    action = torch.tensor(int(state.sum() > 0), device=device)
    saved.append(m.log_prob(action))
    rewards.append(1.0 if action.item() == 1 else -1.0)
returns = torch.tensor(rewards, device=device)
returns = (returns - returns.mean()) / (returns.std() + 1e-6)
loss = torch.stack([-log_prob * R for log_prob, R in zip(saved, returns)]).sum()
optimizer.zero_grad()
loss.backward()
optimizer.step()
print(f"{loss.item():.4f}", f"{sum(p.abs().sum() for p in policy.parameters()).item():.3f}")
