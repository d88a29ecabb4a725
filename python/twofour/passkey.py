"""Whether a language model still finds one sentence in a long text, with each attention mode.

    python -m twofour.passkey --tokens 2048,4096,8192 --trials 50 --calibration FILE --json

A sentence with a five-digit key stands between two sentences of a real text, at one of `depths`
evenly spaced places; the model is asked for the key through its chat template. Its answer is begun
for it ("The pass key is the number"), and a few tokens follow greedily. It counts when the first
number in it is the key. Prompt and answer together are `tokens` tokens. The prompt is read in the
mode; tokens after it are dense (`twofour.hf`). All modes get the same prompts, which the seed
decides. The reference is torch's scaled_dot_product_attention, as in `twofour.eval`.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import _cli, _extras, models, text
from ._greedy import continuation
from .calibrate import DEFAULT_TOKENS, tokenize
from .calibration import Calibration
from .errors import InvalidArgumentError, UnsupportedError
from .eval import REFERENCE, machine, versions
from .sparsity import MODES, Sparsity

LENGTHS = (2048, 4096, 8192)
TRIALS, DEPTHS = 50, 10
#: Room for five digits, one token each, and a little before and after them.
NEW_TOKENS = 8
#: The texts around the keys start within so many times the longest prompt.
_SPREAD = 16

_INSTRUCTION = "A pass key is hidden in the following text. Find it and remember it."
_NEEDLE = " The pass key is the number {key}. Remember it: the pass key is the number {key}."
_QUESTION = "What is the pass key in the text above?"
_ANSWER = "The pass key is the number"
_MARK = "[[text]]"  # where the text goes; chat templates leave it alone


@dataclass(frozen=True)
class Trial:
    """One question."""

    key: str
    depth: int  # which of the places, 0 nearest to the start
    prompt: Tensor = field(repr=False)  # int64 [tokens - NEW_TOKENS]


@dataclass(frozen=True)
class Miss:
    """A wrong answer."""

    key: str
    depth: int
    answer: str


@dataclass
class Score:
    """Of one mode and length."""

    correct: int
    by_depth: list[int]
    misses: list[Miss] = field(default_factory=list, repr=False)


@dataclass
class Passkey:
    """Scores by mode and length, the reference (``"sdpa"``) first."""

    model: str
    trials: int
    depths: int
    seed: int
    skip: int
    sparsity: dict[str, str]
    scores: dict[str, dict[int, Score]]
    calibration: str | None = None  # its kind
    text: str | None = None  # its name
    device: str = "cpu"  # where the model ran

    def as_json(self) -> dict[str, Any]:
        """All of it as plain values."""
        out = {name: getattr(self, name) for name in ("model", "trials", "depths", "seed", "skip")}
        out |= {"calibration": self.calibration, "text": self.text}
        out |= {"machine": machine(self.device), "versions": versions(), "modes": {}}
        for mode, scores in self.scores.items():
            rows = {}
            for tokens, score in scores.items():
                against = score.correct - self.scores[REFERENCE][tokens].correct
                rows[str(tokens)] = asdict(score) | {"against_reference": against}
            out["modes"][mode] = {"sparsity": self.sparsity[mode], "tokens": rows}
        return out


def frame(tokenizer: Any) -> tuple[Tensor, Tensor]:
    """What stands before and after the text in a prompt, as token ids.

    Raises:
        UnsupportedError: the tokenizer has no chat template, or one that changes the question.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UnsupportedError(
            "model: expected a tokenizer with a chat template, got none; the test asks a question"
        )
    content = f"{_INSTRUCTION}\n\n{_MARK}\n\n{_QUESTION}"
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    parts = (rendered + _ANSWER).split(_MARK)
    if len(parts) != 2:
        raise UnsupportedError(
            f"model: expected a chat template that shows the question once, got it "
            f"{len(parts) - 1} times"
        )
    head, tail = (tokenize(tokenizer, part) for part in parts)
    return head, tail


def _sentence_ends(tokenizer: Any, ids: Tensor) -> Tensor:
    """bool [T]: tokens behind which a sentence may stand."""
    stops = [
        token
        for token in ids.unique().tolist()
        if tokenizer.decode([token]).rstrip().endswith((".", "!", "?"))
    ]
    return torch.isin(ids, torch.tensor(stops, dtype=ids.dtype))


def trials_of(
    tokenizer: Any,
    ids: Tensor,
    tokens: int,
    *,
    trials: int = TRIALS,
    depths: int = DEPTHS,
    seed: int = 0,
) -> list[Trial]:
    """The questions of one length; the same for the same arguments.

    Args:
        ids: int64 [T], the text the keys are hidden in.
        tokens: of prompt and answer together.

    Raises:
        InvalidArgumentError: no room for a text between question and key, or too short a text.
        UnsupportedError: the tokenizer has no chat template.
    """
    head, tail = frame(tokenizer)
    ends = _sentence_ends(tokenizer, ids)
    draw = random.Random(f"{seed} {tokens}")
    found = []
    for index in range(trials):
        key = str(draw.randrange(10000, 100000))
        needle = tokenize(tokenizer, _NEEDLE.format(key=key))
        fixed = head.numel() + needle.numel() + tail.numel() + NEW_TOKENS
        room = tokens - fixed
        if room < fixed:
            raise InvalidArgumentError(
                f"tokens: expected at least {2 * fixed}, half of them text, got {tokens}"
            )
        if ids.numel() < room:
            raise InvalidArgumentError(
                f"text: expected at least {room} tokens for a prompt, got {ids.numel()}"
            )
        start = draw.randrange(ids.numel() - room + 1)
        body = ids[start : start + room]
        depth = index % depths
        at = round(room * (depth + 0.5) / depths)
        places = ends[start : start + room].nonzero().flatten() + 1
        if places.numel():
            at = int(places[(places - at).abs().argmin()])
        prompt = torch.cat((head, body[:at], needle, body[at:], tail))
        found.append(Trial(key, depth, prompt))
    return found


def matches(answer: str, key: str) -> bool:
    """Whether the first number of an answer is the key."""
    number = re.search(r"\d+", answer)
    return number is not None and number[0] == key


def evaluate(
    model: Any,
    tokenizer: Any,
    ids: Tensor,
    modes: Sequence[str] = MODES,
    *,
    lengths: Sequence[int] = LENGTHS,
    trials: int = TRIALS,
    depths: int = DEPTHS,
    seed: int = 0,
    skip: int = 0,
    calibration: Calibration | str | os.PathLike | None = None,
    text_name: str | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Passkey:
    """Asks the model in every mode; the model is left as it was.

    Args:
        model, tokenizer: a causal language model of transformers with a chat template.
        ids: int64 [T]; keys are hidden in what follows the first `skip`.
        modes: mode names or canonical sparsity strings; the reference need not be named.
        calibration: for the modes with a pruned Query.
        text_name: what the tokens are of, for the reports.
        progress: called with a line of text every ten trials.

    Raises:
        InvalidArgumentError: too little text, a length beyond the model's context, an unknown
            mode, or a calibration of another model.
        UnsupportedError: the tokenizer has no chat template.
    """
    from . import hf

    for tokens in lengths:
        models.check_window(model, tokens)
    head_dim = max(hf.head_shape(module)[2] for module in hf.attention_modules(model).values())
    names = [REFERENCE, *(name for name in dict.fromkeys(modes) if name != REFERENCE)]
    sparsity = {name: str(Sparsity.parse(name, head_dim)) for name in names[1:]}
    if calibration is not None and not isinstance(calibration, Calibration):
        calibration = Calibration.load(calibration)
    ids = ids[skip : skip + _SPREAD * max(lengths)]
    scores: dict[str, dict[int, Score]] = {name: {} for name in names}
    with hf.temporarily(model, mode=REFERENCE):
        for tokens in lengths:
            asked = trials_of(tokenizer, ids, tokens, trials=trials, depths=depths, seed=seed)
            for name in names:
                hf.enable(model, mode=sparsity.get(name, REFERENCE), calibration=calibration)
                score = Score(0, [0] * depths)
                for index, trial in enumerate(asked):
                    if index % 10 == 0:
                        progress(f"{tokens} tokens: {name}, trial {index + 1} of {trials}")
                    answer = continuation(model, tokenizer, trial.prompt, NEW_TOKENS)
                    if matches(answer, trial.key):
                        score.correct += 1
                        score.by_depth[trial.depth] += 1
                    else:
                        score.misses.append(Miss(trial.key, trial.depth, answer))
                scores[name][tokens] = score
    return Passkey(
        models.name_of(model),
        trials,
        depths,
        seed,
        skip,
        {REFERENCE: str(Sparsity.parse("dense"))} | sparsity,
        scores,
        calibration.kind if calibration is not None else None,
        text_name,
        str(model.device),
    )


def table(found: Passkey) -> str:
    """Keys found, a line for each mode."""
    lengths = list(found.scores[REFERENCE])
    head = f"{'mode':<14}{'sparsity':<24}"
    head += "".join(f"{f'{tokens} tokens':>15}" for tokens in lengths)
    lines = [head, "-" * len(head)]
    for name, scores in found.scores.items():
        cells = (f"{score.correct} of {found.trials}" for score in scores.values())
        shown = "sdpa (torch)" if name == REFERENCE else name
        lines.append(
            f"{shown:<14}{found.sparsity[name]:<24}" + "".join(f"{cell:>15}" for cell in cells)
        )
    return "\n".join(lines)


def _main(argv: Sequence[str]) -> None:
    parser = _cli.Parser(prog="twofour.passkey", description=__doc__.splitlines()[0])
    _cli.add_source(parser)
    lengths = _cli.counts(2, 1 << 20)
    parser.add_argument(
        "--tokens", type=lengths, default=list(LENGTHS),
        help=f"lengths of prompt and answer (default {','.join(map(str, LENGTHS))})",
    )  # fmt: skip
    trials = _cli.count(1, 1 << 16)
    parser.add_argument("--trials", type=trials, default=TRIALS, help=f"default {TRIALS}")
    depths = _cli.count(1, 1 << 10)
    parser.add_argument("--depths", type=depths, default=DEPTHS, help="places for the key")
    seed = _cli.count(0, (1 << 63) - 1)
    parser.add_argument("--seed", type=seed, default=0, help="of keys and texts")
    skip = _cli.count(0, 1 << 24)
    parser.add_argument("--skip", type=skip, default=DEFAULT_TOKENS, help="tokens left out first")
    _cli.add_modes(parser)
    options = parser.parse_args(argv)
    names = _cli.modes_of(parser, options)
    _extras.require("hf")
    calibration = Calibration.load(options.calibration) if options.calibration else None
    with _cli.progress() as show:
        show("reading the text")
        words = text.read(options.text)
        show("loading the model")
        model, tokenizer = models.load(options.model, device=options.device)
        need = options.skip + _SPREAD * max(options.tokens)
        found = evaluate(
            model,
            tokenizer,
            tokenize(tokenizer, words, need),
            names,
            lengths=options.tokens,
            trials=options.trials,
            depths=options.depths,
            seed=options.seed,
            skip=options.skip,
            calibration=calibration,
            text_name=text.name_of(options.text),
            progress=show,
        )
    print(json.dumps(found.as_json(), indent=1) if options.json else table(found))


if __name__ == "__main__":
    sys.exit(_cli.run("twofour.passkey", _main, None))
