"""The words in which a benchmark's questions are asked, where lmms-eval's own are changed.

nanoVLM asks some benchmarks in words of its own, and its published figures were measured with them. So only
figures of questions in the same words are comparable. Source: `get_benchmark_formatting` in nanoVLM's
eval/lmms_eval_wrapper.py (Apache 2.0), from which the prompts are taken to the letter. It finds a benchmark
by the exact name of lmms-eval's task; `chartvqa` is none of them, so nanoVLM asks `chartqa` in lmms-eval's
own words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

USER, ASSISTANT = "user", "assistant"


@dataclass(frozen=True)
class QuestionFormat:
    """How a question is changed: first what is put before it, then the replacements in their order, then what
    follows it; `answer_start` is the beginning of the model's answer."""

    before: str = ""
    replacements: Sequence[tuple[str, str]] = ()
    after: str = ""
    answer_start: str = ""

    def applied(self, messages: Sequence[tuple[str, str]], mark: str) -> list[tuple[str, str]]:
        """Return the conversation with its last question changed; a picture's `mark` at the beginning of the
        text stays before it."""
        last = max((n for n, (role, _) in enumerate(messages) if role == USER), default=None)
        if last is None:
            return list(messages)
        text = messages[last][1]
        shown = 0
        while text.startswith(mark, shown):
            shown += len(mark)
        question = self.before + text[shown:]
        for old, new in self.replacements:
            question = question.replace(old, new)
        changed = (USER, text[:shown] + question + self.after)
        begun = [(ASSISTANT, self.answer_start)] if self.answer_start else []
        return [*messages[:last], changed, *messages[last + 1 :], *begun]


CHOICES = QuestionFormat(
    replacements=(
        ("\nOptions:", "\nChoices:"),
        ("\nA. ", "\nChoices:\nA. "),
        ("Please select the correct answer from the options above.", "Answer with the letter."),
        (
            "Answer with the option's letter from the given choices directly",
            "Answer with the letter directly",
        ),
    ),
    answer_start="Answer:",
)
EXAM = QuestionFormat(
    replacements=(
        ("Question:", ""),
        (
            "Answer with the option's letter from the given choices directly.",
            "Answer with the letter directly.",
        ),
        ("\nA. ", "\nChoices:\nA. "),
    ),
    answer_start="Answer:",
)
DOCUMENT = QuestionFormat(
    before="Give a short and terse answer to the following question. Do not paraphrase or reformat the text "
    "you see in the image. Do not include any full stops. Just give the answer without additional "
    "explanation. Question: "
)
CHART = QuestionFormat(
    before="""\
For the question below, follow the following instructions:
-The answer should contain as few words as possible.
-Don't paraphrase or reformat the text you see in the image.
-Answer a binary question with Yes or No.
-When asked to give a numerical value, provide a number like 2 instead of Two.
-If the final answer has two or more items, provide it in the list format like [1, 2].
-When asked to give a ratio, give out the decimal value like 0.25 instead of 1:4.
-When asked to give a percentage, give out the whole value like 17 instead of decimal like 0.17%.
-Don't include any units in the answer.
-Do not include any full stops at the end of the answer.
-Try to include the full label from the graph when asked about an entity.
Question: """
)
SCENE_TEXT = QuestionFormat(
    before="""\
Answer the following question about the image using as few words as possible. \
Follow these additional instructions:
-Always answer a binary question with Yes or No.
-When asked what time it is, reply with the time seen in the image.
-Do not put any full stops at the end of the answer.
-Do not put quotation marks around the answer.
-An answer with one or two words is favorable.
-Do not apply common sense knowledge. The answer can be found in the image.
Question: """
)
BRIEF = QuestionFormat(after="\nGive a very brief answer.")

NANOVLM: Mapping[str, QuestionFormat] = {
    **dict.fromkeys(("ai2d", "mmstar", "seedbench", "scienceqa"), CHOICES),
    **dict.fromkeys(("docvqa_val", "docvqa_test"), DOCUMENT),
    "chartvqa": CHART,
    **dict.fromkeys(("textvqa_val", "textvqa_test"), SCENE_TEXT),
    **dict.fromkeys(("mmmu_val", "mmmu_test"), EXAM),
    **dict.fromkeys(("infovqa_val", "mme", "ocrbench"), BRIEF),
}
"""By lmms-eval's name of the task."""
