"""The common parts of exports of vision-language models: the tower, the tokenizer, the question."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from tasks.export.formats import ProofQuestion, picture, refuse
from tasks.models.vlm.chat_text import END, START, ChatMessage
from tasks.models.vlm.vlm import VlmRecipe
from tasks.models.vlm.vlm_layouts import why_no_siglip

ASKED = f"{START}user\nIt's a picture: what is in it, at 3 o'clock?{END}\n{START}assistant\n"


def require_siglip(model: Any, target: str) -> None:
    """Raise UsageError for a vision tower that is not SigLIP's of transformers."""
    reason = why_no_siglip(model)
    if reason is not None:
        instead = "give train.model.vision a SigLIP model of transformers, such as "
        raise refuse(target, reason, f"{instead}google/siglip2-base-patch16-512")


def save_tokenizer(recipe: VlmRecipe, folder: Path) -> None:
    """Save the tokenizer with the tokens of pictures, in the form that transformers' AutoTokenizer reads."""
    library: Any = importlib.import_module("transformers")
    library.PreTrainedTokenizerFast(
        tokenizer_object=recipe.chat.text.tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def ask_chat(recipe: VlmRecipe, model: Any) -> ProofQuestion:
    """Ask about a picture of several tiles; the answer is the logits of each token, in float64."""
    chat, model = recipe.chat, model.double()
    shown = picture(0, 3 * chat.tiles.side, 2 * chat.tiles.side)
    tiles = chat.cut([shown])
    grid = chat.tiles.grid_of(*shown.size)
    tokens = torch.tensor([chat.text.encode_prompt([ChatMessage("user", "What is it?")], [grid])])
    with torch.inference_mode():
        positions = torch.arange(tokens.shape[1])[None]
        features = model(tokens, tiles, positions)
        logits = model.language.get_output_embeddings()(features)
    spelt = torch.tensor([chat.text.tokenizer.encode(ASKED, add_special_tokens=False).ids])
    return ProofQuestion({"logits": logits, "tokens": spelt}, (), [ASKED], {"tokens": tokens, "tiles": tiles})
