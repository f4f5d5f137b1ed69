"""Write models as transformers folders: CLIP, vision-language models as Idefics3, the text tower of CT-CLIP.

A model of open_clip becomes a `CLIPModel` if both towers are the plain transformers of the first CLIP. A
model of recipe vlm becomes an `Idefics3ForConditionalGeneration`, which has the same three parts, if its
vision tower is SigLIP's. transformers has only the text tower of CT-CLIP.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch

from tasks.export.chat import ask_chat, require_siglip, save_tokenizer
from tasks.export.formats import TEXTS, ProofQuestion, TrainedModel, Written, picture, refuse
from tasks.export.open_clip import described, features
from tasks.models.clip.clip import ClipRecipe
from tasks.models.clip.clip_layouts import clip_views, why_no_clip_model
from tasks.models.ct.ct_clip_options import CtClipOptions
from tasks.models.ct.ct_reports import LEFT_OUT
from tasks.models.vlm import vlm_layouts as layouts
from tasks.models.vlm.vlm import VlmRecipe

EVENLY_CROPPED = ((300, 100), (100, 300), (90, 90), (640, 640))
"""Sizes of pictures that lose equally many pixels on both sides: of an odd number, transformers' processor
takes the larger half from the other side than torchvision."""
RESAMPLING = {"bilinear": 2, "bicubic": 3}
"""Pillow's numbers of interpolations."""


def write_hf(trained: TrainedModel, folder: Path) -> Written:
    """Write the folder; UsageError for a model that transformers has no class for."""
    recipe = trained.recipe
    if isinstance(recipe, ClipRecipe):
        return _clip(recipe, trained.model, folder)
    if isinstance(recipe, VlmRecipe):
        return _vlm(recipe, trained.model, folder)
    if isinstance(trained.options, CtClipOptions) and trained.options.text_kind == "transformers":
        return _reports(recipe, trained.model, folder)
    instead = "set train.model.text to a model of transformers for its text tower"
    raise refuse("hf", "transformers has no part of this model", instead)


def _transformers() -> Any:
    """Import the library late, because it takes seconds, and switch off its progress bars."""
    found: Any = importlib.import_module("transformers")
    found.utils.logging.disable_progress_bar()
    return found


def _clip(recipe: ClipRecipe, model: Any, folder: Path) -> Written:
    known, pictures = described(recipe), recipe.preprocessing
    reason = why_no_clip_model(known)
    if pictures.resize_mode not in ("shortest", "squash") or pictures.interpolation not in RESAMPLING:
        reason = reason or f"pictures resized by {pictures.resize_mode}, {pictures.interpolation}"
    if reason is not None:
        raise refuse("hf", f"CLIPModel of transformers has no {reason}", "--to open_clip takes it")
    library = _transformers()
    activation = "quick_gelu" if known.get("quick_gelu") else "gelu"
    config = _clip_config(library, model, recipe.tokenize, known["embed_dim"], activation)
    with torch.device("meta"):
        theirs = library.CLIPModel(config)
    weights = {name: value.contiguous() for name, value in clip_views(model).items()}
    theirs.load_state_dict(weights, strict=True, assign=True)
    theirs.save_pretrained(folder)
    _clip_processor(library, model, recipe.tokenize, pictures).save_pretrained(folder)
    shown = [picture(number, *size) for number, size in enumerate(EVENLY_CROPPED)]
    question = ProofQuestion(features(recipe, model, shown), shown, TEXTS)
    return Written("CLIPModel, tokenizer, image processor", "CLIPModel.from_pretrained('{path}')", question)


def _clip_config(library: Any, model: Any, tokenizer: Any, space: int, activation: str) -> Any:
    def measures(tower: Any) -> dict[str, Any]:
        first = tower.resblocks[0]
        return {
            "hidden_size": tower.width,
            "intermediate_size": first.mlp.c_fc.out_features,
            "num_hidden_layers": len(tower.resblocks),
            "num_attention_heads": first.attn.num_heads,
            "projection_dim": space,
            "hidden_act": activation,
        }

    side, patch = model.visual.image_size[0], model.visual.patch_size[0]
    vision = library.CLIPVisionConfig(**measures(model.visual.transformer), image_size=side, patch_size=patch)
    text = library.CLIPTextConfig(
        **measures(model.transformer),
        vocab_size=model.vocab_size,
        max_position_embeddings=model.context_length,
        bos_token_id=tokenizer.sot_token_id,
        eos_token_id=tokenizer.eot_token_id,
        pad_token_id=tokenizer.eot_token_id,
    )
    return library.CLIPConfig(
        projection_dim=space, vision_config=vision.to_dict(), text_config=text.to_dict()
    )


def _clip_processor(library: Any, model: Any, tokenizer: Any, pictures: Any) -> Any:
    """Return the processor of pictures, which uses Pillow as open_clip does, and of texts."""
    side = model.visual.image_size[0]
    square, is_squashed = {"height": side, "width": side}, pictures.resize_mode == "squash"
    of_pictures = library.CLIPImageProcessorPil(
        size=square if is_squashed else {"shortest_edge": side},
        crop_size=square,
        do_center_crop=not is_squashed,
        resample=RESAMPLING[pictures.interpolation],
        image_mean=list(pictures.mean),
        image_std=list(pictures.std),
    )
    end = tokenizer.decoder[tokenizer.eot_token_id]
    of_texts = library.CLIPTokenizer(
        vocab=dict(tokenizer.encoder),
        merges=list(tokenizer.bpe_ranks),
        bos_token=tokenizer.decoder[tokenizer.sot_token_id],
        eos_token=end,
        unk_token=end,
        pad_token=end,
        model_max_length=model.context_length,
    )
    return library.CLIPProcessor(of_pictures, of_texts)


def _vlm(recipe: VlmRecipe, model: Any, folder: Path) -> Written:
    require_siglip(model, "hf")
    language, vision = model.language.config, layouts.vision_config(model)
    library = _transformers()
    config = library.Idefics3Config(
        text_config=language.to_dict(),
        vision_config={name: getattr(vision, name) for name in layouts.IDEFICS3_VISION},
        scale_factor=model.projector.factor,
        image_token_id=recipe.chat.text.image,
        tie_word_embeddings=language.tie_word_embeddings,
    )
    mine = layouts.weights_of(model)
    weights = layouts.store(layouts.idefics3_layout(mine), mine)
    weights.setdefault("lm_head.weight", mine[layouts.EMBEDDING])
    with torch.device("meta"):
        theirs = library.Idefics3ForConditionalGeneration(config)
    try:
        theirs.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError:  # the language model has a layer that Idefics3 lacks, or the reverse
        instead = "give train.model.language a Llama, such as HuggingFaceTB/SmolLM2-360M-Instruct"
        raise refuse("hf", f"Idefics3 cannot hold this {language.model_type}", instead) from None
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    save_tokenizer(recipe, folder)
    mean, deviation = (value.flatten().tolist() for value in (model.vision.mean, model.vision.deviation))
    question = ask_chat(recipe, model)
    tensors = {**question.tensors, "mean": torch.tensor(mean), "deviation": torch.tensor(deviation)}
    return Written(
        "Idefics3ForConditionalGeneration and tokenizer; not the cutting of pictures into tiles",
        "AutoModelForImageTextToText.from_pretrained('{path}')",
        ProofQuestion(question.answers, (), question.texts, tensors),
    )


def _reports(recipe: Any, model: Any, folder: Path) -> Written:
    """Write the text tower alone, without the projection into the common embedding space."""
    _transformers()
    reports = recipe.reports
    model.text_transformer.save_pretrained(folder)
    reports.tokenizer.save_pretrained(folder)
    tower = model.text_transformer.double()
    with torch.inference_mode():
        tokens = reports.trimmed(reports.tokenize(TEXTS))
        answers = {"text features": reports.read(tower, tokens), "tokens": tokens}
    return Written(
        "the text tower and its tokenizer; not the vision tower and the projections",
        "AutoModel.from_pretrained('{path}')",
        ProofQuestion(answers, (), [text.translate(LEFT_OUT) for text in TEXTS]),
    )
