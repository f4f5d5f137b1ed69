"""Which tokens attend to which in rows of conversations, and by which of torch's kernels.

transformers' models find their attention by a name in their config. Ours takes rows of one conversation and
padding, for which causal attention needs no mask, and rows of several. Those a mask tells apart or, where the
device has attention of variable length, the places where they begin: nothing is computed between them then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

SDPA, ROWS = "sdpa", "tarmac_rows"
"""Names of attention in a config. For ours transformers makes no mask; the host would wait for a GPU to see
whether one is needed."""
LARGEST_HEAD = 256


def install(config: Any) -> None:
    """Have the language model of this config attend by rows, if torch's attention is the one that it has."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS  # which a loader's worker spares

    ALL_ATTENTION_FUNCTIONS.register(ROWS, _attend)
    if config._attn_implementation == SDPA:
        config._attn_implementation = ROWS


@contextmanager
def masks_by_transformers(config: Any) -> Iterator[None]:
    """Have transformers make the masks itself, as it has to while it generates after padding."""
    before = config._attn_implementation
    config._attn_implementation = SDPA if before == ROWS else before
    try:
        yield
    finally:
        config._attn_implementation = before


def several(config: Any, segments: Tensor, count: int) -> Mapping[str, Any]:
    """Return the arguments by which a language model tells apart the conversations in rows.

    `segments` [rows, length] has the number of each token's conversation in its row. Padding counts as one;
    there are `count` in all rows.
    """
    if not has_variable_lengths(config, segments.device):
        return {"attention_mask": block_mask(segments)}
    length = segments.shape[1]  # which is the same for many batches; a kernel skips what is past an end
    bounds = bounds_of(segments, count)
    return {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": length, "max_length_k": length}


def has_variable_lengths(config: Any, device: torch.device) -> bool:
    """Return whether a kernel of variable length takes this model: on a GPU from Ampere on, under autocast.

    Where bits are promised the mask is kept, because torch chooses the kernel by versions of libraries.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return (
        config._attn_implementation == ROWS
        and not getattr(config, "attention_dropout", 0)  # which the kernel does not have
        and device.type == "cuda"
        and torch.is_autocast_enabled(device.type)
        and not torch.are_deterministic_algorithms_enabled()
        and head % 8 == 0
        and head <= LARGEST_HEAD
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def bounds_of(segments: Tensor, count: int) -> Tensor:
    """Return [count + 1] int32: where each segment begins in the rows, laid end to end, and the last one
    ends."""
    begins = torch.ones_like(segments, dtype=torch.bool)
    begins[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return pad(nonzero_of(begins.flatten(), count), (0, 1), value=segments.numel()).int()


def block_mask(segments: Tensor) -> Tensor:
    """Return [rows, 1, length, length], true where a token attends to another: to earlier ones of its
    conversation."""
    length = segments.shape[1]
    is_before = torch.ones(length, length, dtype=torch.bool, device=segments.device).tril()
    same = segments[:, :, None] == segments[:, None, :]
    return (same & is_before)[:, None]


def window_mask(length: int, window: int, device: torch.device) -> Tensor:
    """Return [1, 1, length, length], true where a token attends to itself or to one of the `window` - 1
    before it."""
    is_before = torch.ones(1, 1, length, length, dtype=torch.bool, device=device).tril()
    return is_before.triu(1 - window)


def nonzero_of(flags: Tensor, count: int) -> Tensor:
    """Return the places [count] of the true ones in `flags` [n], of which there are `count`; nothing waits
    for a GPU."""
    return torch.nonzero_static(flags, size=count).squeeze(1)


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Return the attention [rows, length, heads, width] of `query`, `key` and `value`, each of shape [rows,
    heads, length, width]; there may be fewer heads of keys and values. With a `sliding_window` a token
    attends to so many at most: to itself, and to those right before it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if cu_seq_lens_q is None:
        if sliding_window is not None and sliding_window < query.shape[2]:
            near = window_mask(query.shape[2], sliding_window, query.device)
            attention_mask = near if attention_mask is None else attention_mask & near
        masked: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS[SDPA](
            module, query, key, value, attention_mask, scaling=scaling, **others
        )
        return masked
    from torch.nn.attention import varlen  # which imports torch's compiler

    lower = torch.get_autocast_dtype(query.device.type)  # autocast does not know the kernel
    queries, keys, values = (one.transpose(1, 2).flatten(0, 1).to(lower) for one in (query, key, value))
    found: Any = varlen.varlen_attn(
        queries,
        keys,
        values,
        cu_seq_lens_q,
        cu_seq_lens_q,
        max_length_q,
        max_length_q,
        scale=scaling,
        window_size=(-1 if sliding_window is None else sliding_window - 1, 0),
        enable_gqa=True,
    )
    return found.unflatten(0, (query.shape[0], query.shape[2])), None
