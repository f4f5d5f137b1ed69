"""A training of several gloo ranks, into one of which a fault of NVIDIA's own pool is injected.

`torchrun --nproc_per_node=4 -m tests.stalls.pool_program FAULT RANK`, with `nvidia-resiliency-ext` on the path.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from nvidia_resiliency_ext.inprocess.tools import inject_fault
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from tests.stalls.pool import DEBUG_PORT

STEPS = 1_000_000
DELAY_S = 2.0
INJECTED = Path("injected")
"""Written at the moment of the fault."""


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> float:
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def main(fault: str, at: int) -> None:
    logging.disable()  # the injector announces each fault in words that nobody has who searches for one
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if DEBUG_PORT in os.environ:
        from torch.distributed.debug import start_debug_server

        start_debug_server(int(os.environ[DEBUG_PORT]), fetch_timeout=5.0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(4096, 256))
    loader = DataLoader(data, batch_size=8, sampler=DistributedSampler(data))
    if rank == at:
        inject_fault.dispatch_fault_injection(inject_fault.Fault[fault], DELAY_S, INJECTED.touch)
    step = 0
    while step < STEPS:
        for (batch,) in loader:
            inject_fault.maybe_raise_workload_exception()
            loss = train_step(model, optimizer, batch)
            if rank == 0 and step % 20 == 0:
                print(f"step {step} loss {loss:.4f}", flush=True)
            step += 1


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
