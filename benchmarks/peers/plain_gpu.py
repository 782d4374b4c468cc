"""The GPT on one GPU in a loop as nanoGPT has it: bf16 autocast, torch.compile, fused AdamW, TF32 matrices.

`plain_gpu.py MODEL-JSON BATCH STEPS`: prints a JSON object with tokens per second (median over the later half of tens
of steps), peak memory and the number of parameters. Batches are random bytes, made on the GPU before the clock starts.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F


def main() -> None:
    from trainpkg.config import GPTModel
    from trainpkg.models.gpt import GPT
    from trainpkg.runtime import initial

    config, batch, steps = GPTModel.model_validate(json.loads(sys.argv[1])), int(sys.argv[2]), int(sys.argv[3])
    device = torch.device("cuda", 0)
    torch.set_float32_matmul_precision("high")
    with torch.device("meta"):
        model = GPT(config)
    initial.fill(model, 0, device)
    num_parameters = sum(p.numel() for p in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    compiled = torch.compile(model)
    data = torch.randint(256, (8, batch, config.context + 1), device=device)
    rates = []
    began = 0.0
    for step in range(steps):
        if step % 10 == 0:
            torch.cuda.synchronize()
            now = time.perf_counter()
            if step:
                rates.append(10 * batch * config.context / (now - began))
            began = now
        text = data[step % len(data)]
        with torch.autocast("cuda", torch.bfloat16):
            logits = compiled(text[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    found = {
        "tokens_per_s": statistics.median(rates[len(rates) // 2 :]),
        "memory_mb": torch.cuda.max_memory_allocated() / 1e6,
        "num_parameters": num_parameters,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
