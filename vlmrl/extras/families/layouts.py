"""Log-probs of answers under any vision-language model, in three layouts with the same result.

* `repeat`: a row per answer, its prompt repeated. The reference.
* `fork`: each prompt once, into a cache; the cache is forked and the answers run as a batch. Not with gradient checkpointing, under which
  transformers drops the cache.
* `shared_prefix`: one packed row of all prompts and answers, under the model's own masks (`families.masks`), recurrent layers forked
  (`families.recurrent`). Nothing is copied.

In each of them features of media are handed to the model's own multimodal core (`families.generic`), so placeholders, inputs per layer and
kinds of tokens stay its own affair.

Letters: P columns of a prompt, S of a row, N of a packed row, M scored columns, G answers of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlmrl.extras.families import generic, masks, probe, recurrent, routing
from vlmrl.extras.families.cache import fork as fork_cache
from vlmrl.extras.families.cache import gradient_cache
from vlmrl.extras.families.generic import Encoded, Head, TowerOutput
from vlmrl.types import Prompt


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model that the layouts can run."""

    model: Any
    core: Any
    head: Head | None
    """None: the core gives logits itself."""
    recurrent: tuple[str, ...]
    """Names of the recurrent layers."""
    layers: tuple[Any, ...]
    """Of the decoder."""
    towers: tuple[Any, ...]
    """Modules that make features of media."""
    blocks: tuple[Any, ...]
    """Layers of the towers."""
    unrouted: str
    """Why choices of experts cannot be replayed; nothing where they can (`families.routing`)."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device

    @property
    def routers(self) -> int:
        """Layers that have one."""
        return len(routing.routers_of(self.model))

    def routes(self, prompt: Prompt, ids: Sequence[int], experts_NLk: Tensor) -> tuple[str, str]:
        """Write the choices of an engine as rollouts keep them (`routing.routes`)."""
        return routing.routes(prompt, ids, experts_NLk)

    def hand_over(self, argued: Any) -> HandedOver:
        """Pass a medium through the tower. `argued`: what the family's processor made of it (`families.scribe.ProcessorOutput`)."""
        return HandedOver(generic.slim(generic.features(self.core, argued.arguments, argued.kind)))


@dataclass(frozen=True, eq=False)
class HandedOver:
    """What a core of any family is handed over of one medium."""

    features: TowerOutput

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(part.numel() * part.element_size() for part in self.tensors())

    def owned(self) -> HandedOver:
        """Itself: a medium is passed alone, so nothing else is kept alive."""
        return self

    def tensors(self) -> list[Tensor]:
        """All of them."""
        return generic.tensors(self.features)


Read = Callable[[Tensor, Tensor], Tensor]
"""(what the core gives in scored columns, [M, H], or [M, V] where it gives logits itself; targets [M]) -> numbers per column, [M] or
[M, k]."""


@dataclass(frozen=True, kw_only=True)
class PromptAnswers:
    """A prompt with its media and the answers whose tokens are scored."""

    prompt: Encoded
    media: Sequence[TowerOutput]
    answers: Sequence[Sequence[int]]
    """At least one, none of them empty."""
    experts: Sequence[Tensor | None] = ()
    """Experts to take (`families.routing`), of the prompt's columns and of those of each answer, [columns or fewer, L, k] each; none: the
    model chooses."""

    def chosen(self) -> tuple[Tensor | None, Sequence[Tensor | None]]:
        """Give (experts of the prompt, experts of each answer)."""
        return (self.experts[0], self.experts[1:]) if self.experts else (None, [None] * len(self.answers))


def prepare(model: Any) -> Subject:
    """Make a model ready for packed rows. It computes what it did wherever none runs."""
    masks.install(model)
    names, towers = recurrent.install(model), probe.towers(model)
    return Subject(
        model=model,
        core=generic.core_of(model),
        head=generic.head_of(model),
        recurrent=tuple(names),
        layers=tuple(layer for layer, _ in probe.decoder_layers(model)),
        towers=tuple(towers),
        blocks=tuple(block for tower in towers for block in probe.blocks(tower)),
        unrouted=routing.install(model),
    )


def states(
    subject: Subject, rows: Sequence[int], columns: Sequence[int], *, experts: Tensor | None = None, **inputs: Any
) -> tuple[Tensor, Any]:
    """(what the core gives in these columns, the cache) of one forward pass. `experts`: to take, [N, L, k], of all rows in turn."""
    generic.forget(subject.core)
    device = subject.device
    inputs = {"use_cache": False, **{name: v.to(device) if isinstance(v, Tensor) else v for name, v in inputs.items()}}
    where = (torch.tensor(list(rows), dtype=torch.int64), torch.tensor(list(columns), dtype=torch.int64))
    with routing.replayed(subject.model, None if experts is None else experts.to(device)):
        out = subject.core(**inputs)
    found = out.logits if subject.head is None else out.last_hidden_state
    return found[where], getattr(out, "past_key_values", None)


def logits_of(subject: Subject, found: Tensor) -> Tensor:
    """Logits [M, V] from what the core gives."""
    return found if subject.head is None else subject.head.logits(found)


def logits(subject: Subject, rows: Sequence[int], columns: Sequence[int], **inputs: Any) -> tuple[Tensor, Any]:
    """(logits of these columns [M, V], the cache) of one forward pass."""
    found, cache = states(subject, rows, columns, **inputs)
    return logits_of(subject, found), cache


def plain(subject: Subject) -> Read:
    """Log-probs from whole logits."""
    return lambda found, targets: logprobs(logits_of(subject, found), targets)


def logprobs(logits_MV: Tensor, targets: Tensor | Sequence[int]) -> Tensor:
    """[M], in float64 for float64 logits, else in float32."""
    exact = torch.float64 if logits_MV.dtype == torch.float64 else torch.float32
    wanted = targets if isinstance(targets, Tensor) else torch.tensor(list(targets), dtype=torch.int64)
    return torch.log_softmax(logits_MV.to(exact), -1).gather(-1, wanted.to(logits_MV.device)[:, None])[:, 0]


def features_of(media: Sequence[TowerOutput]) -> dict[str, Any]:
    """The argument that hands over features; nothing for a text."""
    return {"mm_encoder_outputs": generic.hand_over(media)} if media else {}


def answer_positions(prompt: Tensor | None, length: int, answer: int) -> Tensor:
    """Positions of an answer's columns behind a prompt: [3, answer] where the prompt has three rows of them, else [answer]."""
    behind = torch.arange(answer)
    return length + behind if prompt is None else (prompt[:, -1].max() + 1 + behind).expand(3, -1)


def row_positions(subject: Subject, prompt: Encoded, answers: Sequence[int]) -> Tensor:
    """Positions of a prompt and answers of these lengths behind it, each anew: [3, columns] or [columns]."""
    own = generic.positions(subject.core, prompt)
    first = torch.arange(prompt.length) if own is None else own
    return torch.cat([first, *(answer_positions(own, prompt.length, n) for n in answers)], -1)


def kinds(subject: Subject, prompts: Sequence[Mapping[str, Tensor]], answers: Sequence[int]) -> dict[str, Tensor]:
    """Kinds of tokens of a row that is made of prompts, each with so many answer columns behind it (kind 0), [columns] by argument."""
    import inspect

    wanted = inspect.signature(subject.core.forward).parameters
    names = [name for name in (prompts[0] if prompts else ()) if name in wanted]
    return {
        name: torch.cat([part for types, n in zip(prompts, answers, strict=True) for part in (types[name], types[name].new_zeros(n))])
        for name in names
    }


def repeat(subject: Subject, groups: Sequence[PromptAnswers], read: Read | None = None) -> list[list[Tensor]]:
    """A row per answer, padded on the right. [group][answer] -> log-probs [tokens], or what `read` makes of each column."""
    rows = [(group, list(answer)) for group in groups for answer in group.answers]
    longest = max(group.prompt.length + len(answer) for group, answer in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    attention = torch.zeros_like(ids)
    places: list[Tensor] = []
    types: list[dict[str, Tensor]] = []
    parts: list[tuple[Tensor | None, int]] = []
    for b, (group, answer) in enumerate(rows):
        n = group.prompt.length + len(answer)
        ids[b, :n] = torch.cat([group.prompt.ids_P, torch.tensor(answer)])
        attention[b, :n] = 1
        own = row_positions(subject, group.prompt, [len(answer)])
        places.append(torch.cat([own, own[..., -1:].expand(*own.shape[:-1], longest - n)], -1))
        types.append(kinds(subject, [group.prompt.types], [longest - group.prompt.length]))
    for group in groups:
        before, behind = group.chosen()
        parts += [part for own in behind for part in ((before, group.prompt.length), (own, longest - group.prompt.length))]
    scored = [(b, group.prompt.length - 1 + j) for b, (group, answer) in enumerate(rows) for j in range(len(answer))]
    given = {name: torch.stack([row[name] for row in types]) for name in types[0]}
    media = [one for group, _ in rows for one in group.media]
    out, _ = states(
        subject,
        *zip(*scored, strict=True),
        input_ids=ids,
        attention_mask=attention,
        position_ids=torch.stack(places, -2),
        experts=routing.columns(parts),
        **given,
        **features_of(media),
    )
    return _shared_out(_read(subject, read, out, [t for _, answer in rows for t in answer]), groups)


def fork(subject: Subject, groups: Sequence[PromptAnswers], read: Read | None = None) -> list[list[Tensor]]:
    """Each prompt once, its cache forked to the answers. Result as that of `repeat`.

    Raises:
        ValueError: the model recomputes its layers in training, so that it has no cache.
    """
    return [_forked(subject, group, read) for group in groups]


def _forked(subject: Subject, group: PromptAnswers, read: Read | None) -> list[Tensor]:
    before, behind = group.chosen()
    first, cache = prefilled(subject, group.prompt, group.media, routing.columns([(before, group.prompt.length)]))
    fork_cache(cache, len(group.answers))
    longest = max(map(len, group.answers))
    experts = routing.columns([(own, longest) for own in behind])
    ids = torch.tensor([[*answer, *[0] * (longest - len(answer))] for answer in group.answers])
    own = generic.positions(subject.core, group.prompt)
    places = answer_positions(own, group.prompt.length, longest)
    scored = [(b, j) for b, answer in enumerate(group.answers) for j in range(len(answer) - 1)]
    given: dict[str, Any] = {"position_ids": torch.stack([places] * len(ids), -2), "past_key_values": cache, "use_cache": True}
    rows, columns = zip(*scored, strict=True) if scored else ((), ())
    rest, _ = states(subject, rows, columns, input_ids=ids, experts=experts, **given)
    parts: list[Tensor] = []
    at = 0
    for answer in group.answers:
        n = len(answer) - 1
        parts += [first, rest[at : at + n]]
        at += n
    return _shared_out(_read(subject, read, torch.cat(parts), [t for answer in group.answers for t in answer]), [group])[0]


def prefilled(subject: Subject, prompt: Encoded, media: Sequence[TowerOutput], experts: Tensor | None = None) -> tuple[Tensor, Any]:
    """(what the core gives in the last column of the prompt, the cache that it left). `experts`: to take, [P, L, k].

    Raises:
        ValueError: the model kept nothing in the cache.
    """
    given: dict[str, Any] = {name: kind[None] for name, kind in kinds(subject, [prompt.types], [0]).items()}
    first, cache = states(
        subject,
        [0],
        [prompt.length - 1],
        input_ids=prompt.ids_P[None],
        attention_mask=torch.ones(1, prompt.length, dtype=torch.int64),
        position_ids=row_positions(subject, prompt, [])[..., None, :],
        past_key_values=gradient_cache(subject.model.config.get_text_config()),
        use_cache=True,
        experts=experts,
        **given,
        **features_of(media),
    )
    if cache is None or cache.get_seq_length() != prompt.length:
        raise ValueError(
            "the model kept no cache of the prompt (transformers drops it under gradient checkpointing): the layout `fork` cannot run"
        )
    return first, cache


def shared_prefix(subject: Subject, groups: Sequence[PromptAnswers], read: Read | None = None) -> list[list[Tensor]]:
    """One packed row. Result as that of `repeat`."""
    rows = laid(groups)
    ids = torch.cat([part for group in groups for part in (group.prompt.ids_P, torch.tensor([t for a in group.answers for t in a]))])
    places = torch.cat([row_positions(subject, group.prompt, [len(a) for a in group.answers]) for group in groups], -1)
    types = kinds(subject, [group.prompt.types for group in groups], [sum(map(len, group.answers)) for group in groups])
    scored: list[int] = []
    for row in rows:
        at = row.start + row.prompt
        for n in row.answers:
            scored += [row.start + row.prompt - 1, *range(at, at + n - 1)]
            at += n
    media = [one for group in groups for one in group.media]
    mine = masks.packed([row_masks(subject, group) for group in groups], rows)
    parts: list[tuple[Tensor | None, int]] = []
    for group in groups:
        before, behind = group.chosen()
        parts += [(before, group.prompt.length), *((own, len(answer)) for own, answer in zip(behind, group.answers, strict=True))]
    experts = routing.columns(parts)

    def run() -> Tensor:
        with recurrent.heeded(subject.model, rows):
            given: dict[str, Any] = {name: kind[None] for name, kind in types.items()}
            given |= {"input_ids": ids[None], "position_ids": places[..., None, :], "experts": experts}
            return states(subject, [0] * len(scored), scored, **given, **features_of(media))[0]

    out = masks.giving(mine, run)
    return _shared_out(_read(subject, read, out, [t for group in groups for answer in group.answers for t in answer]), groups)


def laid(groups: Sequence[PromptAnswers]) -> list[masks.PackedGroup]:
    """Where groups stand in a packed row, one behind the other."""
    out: list[masks.PackedGroup] = []
    at = 0
    for group in groups:
        out.append(masks.PackedGroup(at, group.prompt.length, tuple(map(len, group.answers))))
        at += out[-1].columns
    return out


def row_masks(subject: Subject, group: PromptAnswers) -> list[Tensor]:
    """The model's own masks of a group's longest row, bool [S, S] each."""
    longest = max(map(len, group.answers))
    length = group.prompt.length + longest
    given: dict[str, Any] = {name: kind[None] for name, kind in kinds(subject, [group.prompt.types], [longest]).items()}
    ids = torch.cat([group.prompt.ids_P, torch.tensor([0] * longest)])
    # A text id in the answers' columns; the largest is as good as another, but no placeholder.
    ids[group.prompt.length :] = group.prompt.ids_P[0]
    given |= {"input_ids": ids[None], "position_ids": row_positions(subject, group.prompt, [longest])[..., None, :]}
    given |= {"attention_mask": torch.ones(1, length, dtype=torch.int64), "use_cache": False}

    def run() -> None:
        generic.forget(subject.core)
        device = subject.device
        moved = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in given.items()}
        subject.core(**moved, **features_of(group.media))

    return masks.own_masks(run, subject.layers[0])


def _read(subject: Subject, read: Read | None, found: Tensor, targets: Sequence[int]) -> Tensor:
    """Numbers of all scored columns."""
    return (read or plain(subject))(found, torch.tensor(targets, dtype=torch.int64, device=found.device))


def _shared_out(flat_M: Tensor, groups: Sequence[PromptAnswers]) -> list[list[Tensor]]:
    """Numbers of all answers one behind the other, to their groups."""
    parts = iter(flat_M.split([len(answer) for group in groups for answer in group.answers]))
    return [[next(parts) for _ in group.answers] for group in groups]


LAYOUTS: dict[str, Callable[..., list[list[Tensor]]]] = {
    "repeat": repeat,
    "fork": fork,
    "shared_prefix": shared_prefix,
}
