"""The blocks of a model, the layers of its transformers, which are compiled and computed again one by one.

All libraries keep such layers in a list of modules of one class, so no recipe has to name them. A block is
compiled once for all of its kind, which takes a fraction of the time that a whole model does. A block with
batch norm is left alone, because it would count each batch twice when it is computed again.
"""

from __future__ import annotations

import importlib
import os
import shutil
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tasks.core.errors import UsageError
from tasks.core.schema import Train
from tasks.models.layers import blocks_of, has_batch_norm


def prepare_blocks(model: nn.Module, train: Train) -> None:
    """Compile the blocks of the model (`train.compile`), and have them compute their activations again in the
    backward pass instead of keeping them (`train.checkpointing`).

    UsageError for a model without such blocks, or a machine without the compiler.
    """
    keys = [key for key in ("compile", "checkpointing") if getattr(train, key)]
    if not keys:
        return
    found = list(blocks_of(model))
    if not found:
        raise UsageError(
            f"train.{keys[0]}: has no effect on this model, which has no transformer; take it out"
        )
    if train.compile:
        _require_compiler()
    for block in found:
        compute: Any = block.forward
        if train.compile:
            compute = torch.compile(compute)
        if train.checkpointing:
            compute = partial(checkpoint, compute, use_reentrant=False)
        block.forward = compute


def lay_out_convolutions(model: nn.Module) -> None:
    """Store the weights of a convolutional network with their channels last, as a GPU's tensor cores take
    them.

    Pictures take that layout from the first convolution on; for weights laid out as usual, cuDNN would turn
    them for each. The one convolution by which a transformer cuts pictures is left as it is.
    """
    found = [module for module in model.modules() if isinstance(module, nn.Conv2d)]
    if len(found) > 1:
        for module in found:
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


def synchronise_batch_norms(model: nn.Module, ranks: int, device: torch.device) -> None:
    """Have the batch norms of the model take their statistics from all ranks.

    UsageError for a model without them, and for several ranks on the CPU, where torch has no such layer.
    """
    key = "train.sync_batch_norm"
    if not has_batch_norm(model):
        raise UsageError(f"{key}: has no effect on this model, which has no batch norm; take it out")
    if ranks == 1:
        return
    if device.type != "cuda":
        raise UsageError(
            f"{key}: torch exchanges statistics between GPUs only; take it out, or train on one rank"
        )
    layers: Any = importlib.import_module("timm.layers")  # late, as most models have none
    layers.convert_sync_batchnorm(model)  # torch's own drops the activations that timm's layers hold


def _require_compiler() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise UsageError(f"train.compile: needs a C++ compiler, and there is no {compiler}; install it")
