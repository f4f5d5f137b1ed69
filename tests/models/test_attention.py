"""Attention in rows of conversations: by where they begin as by a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from tasks.core.schema import Train
from tasks.models import recipes
from tasks.models.vlm import attention
from tasks.models.vlm.vlm import rows_of
from tasks.training.blocks import prepare_blocks
from tests.models.examples import SAMPLES, train_block


def test_a_token_sees_its_own_conversation_up_to_itself() -> None:
    """Asked of the mask itself: transformers guesses one from positions that begin anew, for some models."""
    mask = attention.block_mask(torch.tensor([[0, 0, 1, 1, -1]]))
    assert mask.shape == (1, 1, 5, 5)
    seen = [[int(place) for place in row.nonzero().flatten()] for row in mask[0, 0]]
    assert seen == [[0], [0, 1], [2], [2, 3], [4]]


def test_bounds_are_where_conversations_and_padding_begin() -> None:
    segments = torch.tensor([[0, 0, 1, -1], [0, 1, 1, 1]])
    assert attention.bounds_of(segments, 5).tolist() == [0, 2, 3, 4, 5, 8]


def one_by_one(query: Tensor, key: Tensor, value: Tensor, bounds: Tensor, *_: Any, **options: Any) -> Tensor:
    """What the kernel of variable length computes: causal attention in each part alone."""
    before, after = options["window_size"]
    assert after == 0 and options["enable_gqa"]
    found = []
    for begin, end in bounds.unfold(0, 2, 1).tolist():
        parts = (one[begin:end].transpose(0, 1)[None] for one in (query, key, value))
        mask = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
        mask = mask if before < 0 else mask.triu(-before)
        attended = scaled_dot_product_attention(
            *parts, attn_mask=mask, scale=options["scale"], enable_gqa=True
        )
        found.append(attended[0].transpose(0, 1))
    return torch.cat(found)


def loss_and_gradients(train: Train) -> list[Tensor]:
    recipe = recipes.load_recipe(train)
    torch.manual_seed(3)
    task = recipe.task(recipe.build_model())
    prepare_blocks(task.model, train)
    samples = [
        {**recipe.transform(True)(sample, 1), "key": str(n)} for n, sample in enumerate(SAMPLES["vlm"])
    ]
    rows = [{**sample, "pack": place} for sample, place in zip(samples, (0, 0, 1, 0), strict=True)]
    loss = task(rows_of(rows))
    loss.sum.backward()
    return [loss.sum.detach(), *(one.grad for one in task.parameters() if one.grad is not None)]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_variable_lengths_give_what_the_mask_gives(
    checkpointing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = train_block("vlm", {"checkpointing": checkpointing})
    expected, calls = loss_and_gradients(train), []

    def kernel(*given: Any, **options: Any) -> Tensor:
        calls.append(given)
        return one_by_one(*given, **options)

    monkeypatch.setattr(attention, "has_variable_lengths", lambda *_: True)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda *_: torch.float32)
    found = loss_and_gradients(train)
    assert calls and len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("by_lengths", [False, True])
def test_a_model_keeps_its_window(by_lengths: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a row of its own as transformers has it; in a row of two as each alone."""
    from transformers import AutoModelForCausalLM, MistralConfig

    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = MistralConfig(**sizes, **heads, sliding_window=3, attn_implementation="sdpa")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(20, (1, 12))
    expected, other = model(tokens).logits, model(tokens[:, :7]).logits
    attention.install(model.config)
    if by_lengths:
        monkeypatch.setattr(attention, "has_variable_lengths", lambda *_: True)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", one_by_one)
        monkeypatch.setattr(torch, "get_autocast_dtype", lambda *_: torch.float32)
    torch.testing.assert_close(model(tokens).logits, expected)
    segments = torch.tensor([[0] * 12 + [1] * 7])
    positions = torch.tensor([[*range(12), *range(7)]])
    apart = attention.several(model.config, segments, 2)
    both = model(torch.cat([tokens, tokens[:, :7]], dim=1), position_ids=positions, **apart).logits
    torch.testing.assert_close(both, torch.cat([expected, other], dim=1))


def test_torchs_kernel_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own checks and shapes, on tensors that hold nothing; fewer heads of keys and values."""
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda _: torch.bfloat16)
    query = torch.empty(2, 6, 8, 16, device="meta", requires_grad=True)
    key, value = (torch.empty(2, 2, 8, 16, device="meta", requires_grad=True) for _ in range(2))
    bounds = torch.empty(4, dtype=torch.int32, device="meta")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found, _ = attention._attend(
            torch.nn.Module(), query, key, value, None, cu_seq_lens_q=bounds, max_length_q=8
        )
    found.sum().backward()
    assert found.shape == (2, 8, 6, 16) and found.dtype == torch.bfloat16
    assert key.grad is not None and key.grad.shape == key.shape


@pytest.mark.parametrize(
    ("changes", "takes"),
    [
        ({}, True),
        ({"capability": (7, 5)}, False),
        ({"head_dim": 12}, False),
        ({"head_dim": 512}, False),
        ({"deterministic": True}, False),
        ({"precision": "fp32"}, False),
    ],
)
def test_which_devices_and_models_have_variable_lengths(
    changes: dict[str, Any], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaConfig

    given: dict[str, Any] = {
        **{"capability": (8, 0), "head_dim": 64, "deterministic": False, "precision": "bf16"},
        **changes,
    }
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: given["capability"])
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: given["deterministic"])
    config = LlamaConfig(hidden_size=64, num_attention_heads=1, head_dim=given["head_dim"])
    config._attn_implementation = "sdpa"
    attention.install(config)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: given["precision"] == "bf16")
    assert attention.has_variable_lengths(config, torch.device("cuda")) == takes
    assert not attention.has_variable_lengths(config, torch.device("cpu"))
