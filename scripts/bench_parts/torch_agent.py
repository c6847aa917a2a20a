"""PPO on CartPole-v1 as a PyTorch loop, with the settings of `task=reinforcement_learning`: environment steps a second.

    python scripts/bench_parts/torch_agent.py ROLL-OUTS [ROLL-OUTS BEFORE]

Needs PyTorch and gymnasium, and nothing of mxtrain. It does what CleanRL's ppo.py does: gymnasium's SyncVectorEnv, one
Categorical for each step, torch.optim.Adam, gradients clipped to a norm of 0.5; as many threads as OMP_NUM_THREADS
says. It prints JSON: environment steps, seconds of the processor and of the clock that they took, those before not
counted, and the mean return of the last 100 episodes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import List

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

NUM_ENVS, STEPS, PASSES, GAMMA, LAMBDA, CLIP, VALUE = 8, 32, 10, 0.98, 0.9, 0.2, 0.5
KEPT_EPISODES = 100


def layers(outputs: int, gain: float) -> nn.Sequential:
    made = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))
    for layer, scale in zip((made[0], made[2], made[4]), (2**0.5, 2**0.5, gain)):
        nn.init.orthogonal_(layer.weight, scale)
        nn.init.zeros_(layer.bias)
    return made


def main(counted: int, before: int = 0) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    policy, value = layers(2, 0.01), layers(1, 1.0)
    parameters = [*policy.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, eps=1e-8)
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    makers = [lambda: gymnasium.make("CartPole-v1")] * NUM_ENVS
    environments = gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)
    observation, _ = environments.reset(seed=0)
    running, finished = np.zeros(NUM_ENVS), list[float]()
    rollouts = before + counted
    for number in range(rollouts):
        if number == before:
            started = (time.process_time(), time.monotonic())
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (1 - number / rollouts)
        seen: List[torch.Tensor] = []
        taken: List[torch.Tensor] = []
        log_ps: List[torch.Tensor] = []
        values: List[torch.Tensor] = []
        rewards: List[np.ndarray] = []
        ends: List[np.ndarray] = []
        with torch.no_grad():
            for _ in range(STEPS):
                shown = torch.as_tensor(observation, dtype=torch.float32)
                acting = Categorical(logits=policy(shown))
                action = acting.sample()
                seen.append(shown)
                taken.append(action)
                log_ps.append(acting.log_prob(action))
                values.append(value(shown).squeeze(1))
                observation, reward, terminated, truncated, _ = environments.step(action.numpy())
                ended = terminated | truncated
                running += reward
                finished += running[ended].tolist()
                running[ended] = 0
                rewards.append(reward)
                ends.append(ended)
            following = value(torch.as_tensor(observation, dtype=torch.float32)).squeeze(1)
            advantages, advantage = [], torch.zeros(NUM_ENVS)
            for step in reversed(range(STEPS)):
                goes_on = 1.0 - torch.as_tensor(ends[step], dtype=torch.float32)
                error = torch.as_tensor(rewards[step], dtype=torch.float32) + GAMMA * following * goes_on - values[step]
                advantage = error + GAMMA * LAMBDA * goes_on * advantage
                advantages.insert(0, advantage)
                following = values[step]
        observed, acted, old = torch.cat(seen), torch.cat(taken), torch.cat(log_ps)
        gain = torch.cat(advantages)
        target = gain + torch.cat(values)
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        for _ in range(PASSES):
            acting = Categorical(logits=policy(observed))
            ratio = (acting.log_prob(acted) - old).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            error = (value(observed).squeeze(1) - target).square().mean()
            loss = VALUE * error - torch.min(ratio * gain, clipped * gain).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    processor, clock = time.process_time() - started[0], time.monotonic() - started[1]
    print(json.dumps({
        "steps": counted * STEPS * NUM_ENVS, "processor_s": processor, "wall_s": clock,
        "return": float(np.mean(finished[-KEPT_EPISODES:])),
    }))  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
