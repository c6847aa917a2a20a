"""ResNet-50 as an expert trains it with PyTorch on a GPU: channels last, autocast. Needs nothing of mxtrain.

python -m gpu_check_parts.torch_resnet DEVICE SIZE BATCH_SIZE STEPS float32|float16
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.nn.functional as F
from bench_parts.torch_side import build


def main() -> None:
    device, (size, batch_size, steps) = torch.device(sys.argv[1]), map(int, sys.argv[2:5])
    half = sys.argv[5] == "float16" and device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    network = build("resnet50", size)[0].to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), 0.1, 0.9, weight_decay=1e-4, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=half)
    image = torch.randn(batch_size, 3, size, size, device=device).contiguous(memory_format=torch.channels_last)
    label = torch.randint(10, (batch_size,), device=device)
    begun = 0.0
    for step in range(2 * steps):
        if step == steps:
            _wait(device)
            begun = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.float16, enabled=half):
            loss = F.cross_entropy(network(image).float(), label)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    _wait(device)
    print(json.dumps({"samples_per_s": steps * batch_size / (time.perf_counter() - begun)}))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
