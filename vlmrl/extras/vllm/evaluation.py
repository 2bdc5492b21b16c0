"""A checkpoint that vLLM answers for, in this process: `vlmrl eval --engine vllm`.

Prompts and pixels are those of the reference engine (`vllm.inputs`), and so are the weights: they are loaded here, fingerprinted,
and sent into vLLM as a trainer sends them, with every tensor accounted for. They stay in the machine's memory, so that vLLM has the device.
vLLM starts with the first question that is not answered yet, and ends with the evaluation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vlmrl.errors import ConfigError
from vlmrl.evals.ask.engines import EvalEngine, Generation, LocalEngine
from vlmrl.evals.ask.models import fingerprint_of, model_folder
from vlmrl.evals.ask.tasks import Task
from vlmrl.extras.vllm.argued import lacks, require_proven
from vlmrl.extras.vllm.engine import Core, CoreOptions, VllmEngine, keeps_states, platform
from vlmrl.media.store import MediaStore
from vlmrl.policy.load import load_policy, load_processor, pick_device, saved_rule
from vlmrl.policy.model import Policy, ProcessorBundle
from vlmrl.types import GenerationSettings, Prompt

NAME = "vllm"
"""In the settings of records."""
MEMORY = 0.85
"""Share of a GPU that vLLM may take; nothing else is on it."""
CPU_CACHE_BYTES = 2**30
"""Least bytes of keys and values on a CPU, where a share of the memory would be taken from everybody."""
AT_ONCE = 256
"""Most answers that decode at a time, as `rollout.max_num_seqs`."""


@dataclass(kw_only=True)
class VllmModel:
    """A `models.Model`. Close it when done."""

    name: str
    policy: Policy
    fingerprint: str
    folder: Path
    dtype: str
    device: str
    """`cuda` or `cpu`."""
    room: int = 0
    """Most tokens of a prompt with its answer. A task that needs more starts vLLM anew."""
    _core: Core | None = field(default=None, init=False)
    _engine: VllmEngine | None = field(default=None, init=False)

    @staticmethod
    def load(checkpoint: Path, *, device: str = "auto", dtype: str = "float32", tasks: Iterable[Task] = ()) -> VllmModel:
        """Load a checkpoint. vLLM is started later, with room for the longest prompt and answer of `tasks`.

        Raises:
            ConfigError: there is none, vLLM cannot run it, or is not installed for the device.
        """
        folder = model_folder(checkpoint)
        _require_runs(folder, device)
        bundle = load_processor(str(folder))
        require_proven(bundle, str(folder), "--engine vllm")
        policy = load_policy(str(folder), bundle, device="cpu", dtype=dtype)
        return VllmModel(
            name=checkpoint.absolute().name,
            policy=policy,
            fingerprint=fingerprint_of(policy, dtype),
            folder=folder,
            dtype=dtype,
            device=pick_device(device).type,
            room=max(map(room_of, tasks), default=0),
        )

    @property
    def bundle(self) -> ProcessorBundle:
        return self.policy.bundle

    def engine(self, task: Task, store: MediaStore, records: Path) -> EvalEngine:
        return _Answers(self, room_of(task), store)

    def started(self, room: int, store: MediaStore) -> VllmEngine:
        """The engine, for prompts and answers of up to `room` tokens whose media are in `store`. Its weights are sent when it starts."""
        if self._core is not None and self._core.options.max_model_len < self._most(room):
            self.close()
        if self._core is None or self._engine is None:
            self._core = Core(self._options(self._most(max(room, self.room))))
            self._engine = VllmEngine(self._core, self.policy, store, clips=lacks(self.bundle, str(self.folder), "P18"))
        if self._engine.pixels is not store:
            self._engine.look_at(store)
        return self._engine

    def _most(self, room: int) -> int:
        """No more than the model has positions for: vLLM refuses to start with more, and then a prompt that is too long is named."""
        return min(room, self.policy.model.config.get_text_config().max_position_embeddings)

    def _options(self, most: int) -> CoreOptions:
        on_cpu = self.device == "cpu"
        return CoreOptions(
            path=str(self.folder),
            revision=None,
            architecture=type(self.policy.model).__name__,
            dtype=self.dtype,
            max_model_len=most,
            max_num_seqs=AT_ONCE,
            memory=MEMORY,
            cache_bytes=max(CPU_CACHE_BYTES, 2 * most * _token_bytes(self.policy)) if on_cpu else None,
            eager=on_cpu,
            in_parts=not on_cpu,
            shares=not on_cpu or not keeps_states(self.policy.model.config),
            raw_pixels=self.bundle.writer is None,
        )

    def close(self) -> None:
        """End vLLM, if it was started."""
        core, self._core, self._engine = self._core, None, None
        if core is not None:
            core.close()


@contextmanager
def opened(checkpoint: Path, tasks: Sequence[Task], *, device: str, dtype: str) -> Iterator[VllmModel]:
    """Load a checkpoint for these tasks, and end vLLM afterwards."""
    with closing(VllmModel.load(checkpoint, device=device, dtype=dtype, tasks=tasks)) as model:
        yield model


@dataclass(frozen=True)
class _Answers:
    """The engine of one task."""

    model: VllmModel
    room: int
    store: MediaStore
    engine_name: str = NAME

    @property
    def fingerprint(self) -> str:
        return self.model.fingerprint

    def generate(self, prompts: Sequence[Prompt], settings: GenerationSettings, *, samples: int, seed: int) -> list[list[Generation]]:
        """See `EvalEngine`."""
        engine = self.model.started(self.room, self.store)
        with engine.ready():
            return LocalEngine(engine, fingerprint=self.fingerprint).generate(prompts, settings, samples=samples, seed=seed)


def room_of(task: Task) -> int:
    """Most tokens of a prompt with its answer."""
    return task.max_prompt_tokens + task.max_new_tokens


def _require_runs(folder: Path, device: str) -> None:
    """
    Raises:
        ConfigError: vLLM would be another model than this one, or does not run here. Asked before any weights are read.
    """
    rule = saved_rule(str(folder))
    if rule != "max":
        raise ConfigError(
            f"{folder}: this model was trained with model.positions: {rule}, and vLLM knows the rule 'max' only, so "
            "its answers about videos would be another model's; evaluate it with --engine hf"
        )
    try:
        there = platform()
    except ConfigError as error:
        raise ConfigError(f"--engine vllm: {error}; --engine hf needs nothing more") from error
    wanted = pick_device(device).type
    if there != wanted:
        raise ConfigError(
            f"--engine vllm: the vLLM of this environment computes on '{there}', and --device {device} is '{wanted}' here; give --device "
            f"{there}, install vLLM for '{wanted}', or use --engine hf"
        )


def _token_bytes(policy: Policy) -> int:
    """Bytes of the keys and values of a token."""
    config = policy.model.config.get_text_config()
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * dim * policy.compute.itemsize
