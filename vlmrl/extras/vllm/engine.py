"""vLLM as the rollout engine, in the trainer's own process.

`Core` is vLLM with its memory and lives as long as the process; `VllmEngine` ties it to a policy and lives as long as a stage. Every answer
is a request of its own with its own seed, so it does not depend on what else is in the batch (up to the rounding of batched kernels). The
prompt of a group is computed once: the other answers find it in the prefix cache, but for its last, incomplete block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from vlmrl.errors import ConfigError, EngineError
from vlmrl.extras.vllm.answers import CompletionCollector, Counted, Done, require_room
from vlmrl.extras.vllm.argued import ArguedInputs
from vlmrl.extras.vllm.inputs import Completion, EngineInputBuilder, Version, answer_of, sampling_params
from vlmrl.extras.vllm.routes import OWN, UNSEEN, experts_of, require_routers
from vlmrl.extras.vllm.sync import Sync, SyncReport
from vlmrl.policy.model import Policy
from vlmrl.policy.vision import Pixels
from vlmrl.rollout.mismatch import place_of
from vlmrl.types import GenerationSettings, Prompt, Request, Rollout

PROBE_TOKENS = 8
_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process: weights are handed over and not sent
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def _set_environment() -> None:
    """What vLLM reads of the environment, before its first import."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def platform() -> str:
    """Kind of device that the vLLM of this environment was built for: `cuda` or `cpu`.

    Raises:
        ConfigError: vLLM is not installed, or does not load.
    """
    _set_environment()
    try:
        from vllm.platforms import current_platform  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ConfigError(f"vLLM does not load here ({error}); docs/rollout.md names versions that work together") from error
    return str(current_platform.device_type)


@dataclass(frozen=True, kw_only=True)
class CoreOptions:
    """What vLLM is started with; another one is started where these differ."""

    path: str
    """Folder or hub id of the model. Its weights are replaced by the trainer's before anything is generated."""
    revision: str | None
    architecture: str
    """Class of the model; vLLM's has the same name."""
    dtype: str
    max_model_len: int
    """0: the model's own."""
    max_num_seqs: int
    memory: float
    """Share of the device's memory."""
    cache_bytes: int | None
    """Bytes of the cache of keys and values; None: what `memory` leaves."""
    eager: bool
    block_size: int | None = None
    """Tokens that the prefix cache keeps together; None: vLLM's choice."""
    images: int = 64
    videos: int = 64
    tensor_parallel: int = 1
    """Devices that share the model, on a server."""
    in_parts: bool = True
    """A prompt may be read in several steps. Off on CPUs, where vLLM then cannot draw by a seed: a generator there has no offset."""
    shares: bool = True
    """What prompts begin with in common is computed once. Off on CPUs where layers keep a state: to keep it where a block ends, vLLM reads
    prompts in parts."""
    raw_pixels: bool = True
    """Pixels come as bytes, and its tower normalises them; off: as the model's own processor made them."""
    routes: bool = False
    """Answers bring the experts that routers took."""
    sleeps: bool = False
    """Its memory can be given back between answers (`Core.rest`)."""


def keeps_states(config: Any) -> bool:
    """Whether layers of a model's decoder keep more than keys and values (delta nets, short convolutions)."""
    return any("attention" not in kind or "linear" in kind for kind in getattr(config.get_text_config(), "layer_types", None) or ())


@contextmanager
def ordinary() -> Iterator[None]:
    """Leave torch's deterministic mode, which is the whole process's: vLLM's kernels would take its slower ways, and promise no order."""
    wanted, warn = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(wanted, warn_only=warn)


def arguments_of(options: CoreOptions) -> dict[str, Any]:
    """What vLLM is started with beside the model, here and on servers, by the names of its `EngineArgs`."""
    o = options
    return {
        "revision": o.revision,
        "load_format": "auto",  # not "dummy": that draws buffers at random too, the normalisation of pixels among them
        "generation_config": "vllm",
        "dtype": o.dtype,
        "seed": 0,
        "max_model_len": o.max_model_len or None,
        "max_num_seqs": o.max_num_seqs,
        "max_num_batched_tokens": max(8192, o.max_model_len),
        "tensor_parallel_size": o.tensor_parallel,
        "gpu_memory_utilization": o.memory,
        "kv_cache_memory_bytes": o.cache_bytes,
        "enforce_eager": o.eager,
        "enable_prefix_caching": o.shares,
        "enable_chunked_prefill": None if o.in_parts else False,
        "block_size": o.block_size,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is drawn from; the raw ones know nothing of forbidden ids
        "max_logprobs": 1,
        "limit_mm_per_prompt": {"image": o.images, "video": o.videos},
        "mm_processor_cache_gb": 0,
        "mm_device_do_normalize": o.raw_pixels,
        "skip_mm_profiling": True,
        "disable_log_stats": True,
        "worker_extension_cls": "vlmrl.extras.vllm.worker.WeightReceiver",
    }


class Core:
    """A running vLLM."""

    def __init__(self, options: CoreOptions):
        """
        Raises:
            ConfigError: vLLM is not installed, or refuses the model or these options.
        """
        _set_environment()
        try:
            from vllm import EngineArgs, LLMEngine, ModelRegistry  # pyright: ignore[reportAttributeAccessIssue]
        except ImportError as error:
            raise ConfigError(f"rollout.engine: vllm does not load here ({error}); see docs/rollout.md for the versions") from error
        arguments = EngineArgs(
            model=options.path,
            **arguments_of(options),
            **(OWN if options.routes and platform() != "cpu" else {}),
            **({"enable_sleep_mode": True} if options.sleeps else {}),
            use_tqdm_on_load=False,
        )
        known = ModelRegistry.models.get(options.architecture)
        if known is None:
            raise ConfigError(f"rollout.engine: vLLM has no model '{options.architecture}'")
        # looked at here: vLLM would start a process to import it, in case this one must not touch the device yet
        ModelRegistry.register_model(options.architecture, known.load_model_cls())
        try:
            with ordinary():  # graphs are recorded here
                self.engine: Any = LLMEngine.from_engine_args(arguments)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"rollout.engine: vLLM does not start: {str(error)[:1000]}") from error
        self.options = options
        self.whole = 0
        """How often all weights were sent, over all stages."""
        self.sync = Sync(self.call)
        self._asked = 0
        self.resting = False
        self.routed: list[int] = []
        """Layers whose routers are seen."""
        if options.routes:
            why, self.routed = self.call("vlmrl_route")
            if why:
                self.close()
                raise ConfigError(UNSEEN.format(why))

    def call(self, method: str, *arguments: Any) -> Any:
        """A method of the worker."""
        return self.engine.collective_rpc(method, args=arguments)[0]

    def ask(self, engine_input: Any, parameters: Any) -> str:
        """Put in a request; its name."""
        self._asked += 1
        name = str(self._asked)
        self.engine.add_request(name, engine_input, parameters)
        return name

    @property
    def busy(self) -> bool:
        """Whether a request is open."""
        return self.engine.has_unfinished_requests()

    def step(self) -> list[tuple[str, Completion]]:
        """Compute a little further; the answers that have ended."""
        with ordinary():
            ended = [output for output in self.engine.step() if output.finished]
            return [(output.request_id, replace(answer_of(output), experts=self._experts(output))) for output in ended]

    def _experts(self, output: Any) -> Any:
        if not self.options.routes:
            return None
        fetched = [self.call("vlmrl_experts", output.request_id)] if output.outputs[0].routed_experts is None else []
        return experts_of(output, fetched, self.routed)

    def finished(self) -> Iterator[tuple[str, Completion]]:
        """Answers as they end, until none is left."""
        while self.busy:
            yield from self.step()

    def drop(self, names: Sequence[str]) -> None:
        """Forget requests that nobody waits for."""
        if names:
            self.engine.abort_request(list(names))

    def rest(self) -> None:
        """Give its memory back, weights and caches, where it sleeps. It holds no weights from then on."""
        if self.options.sleeps:
            self.engine.sleep(level=2)
            self.resting = True

    def wake(self) -> None:
        """Take the memory again, for weights that are then sent whole."""
        if self.resting:
            self.engine.wake_up()
            self.resting = False

    def close(self) -> None:
        """Release its memory."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.engine_core.shutdown()


class Inputs(Protocol):
    """Makes what vLLM takes of prompts."""

    def engine_input(self, prompt: Prompt, version: Version) -> Any:
        """Make what `add_request` of vLLM's engine takes.

        Raises:
            ConfigError: vLLM does not take a medium of this prompt.
            ValueError: spans and media of the prompt do not belong together.
        """
        ...


class VllmEngine(Counted):
    """Generates with vLLM. The weights are the policy's after `ready`, which sends them when its version has changed."""

    def __init__(self, core: Core, policy: Policy, pixels: Pixels, *, probe_every: int = 20, clips: str = ""):
        """
        Args:
            probe_every: synchronisations from one look at the probes to the next.
            clips: why videos are not taken; nothing where they are.
        """
        super().__init__()
        if core.options.routes:
            require_routers(policy.subject, len(core.routed))
        self.core = core
        self.policy = policy
        self.clips = clips
        self.look_at(pixels)
        self.probe_every = probe_every
        self.held: Version | None = None
        """Version of the weights in the engine."""
        self._probes: dict[str, Prompt] = {}
        self._syncs = 0
        self._probe_due = False

    @property
    def version(self) -> int:
        return self.policy.version if self.held is None else self.held.policy

    def close(self) -> None:
        """Nothing to release: vLLM lives on for the next stage (`Core.close`)."""

    def look_at(self, pixels: Pixels) -> None:
        """Take media from this store from now on.

        Raises:
            ConfigError: the model is run in a way that vLLM does not have.
        """
        self.pixels, bundle = pixels, self.policy.bundle
        self.inputs: Inputs = (
            EngineInputBuilder(bundle, self.policy.positions, pixels)
            if bundle.writer is None
            else ArguedInputs(bundle.processor, bundle.pad_ids, pixels, self.core.engine.model_config, clips=self.clips)
        )

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Context of `generate`: the engine holds the policy's weights. Every rank enters it."""
        self.sync()
        yield
        self.core.rest()
        self.held = None if self.core.resting else self.held

    def sync(self) -> SyncReport | None:
        """Send the weights if they are not those that the engine holds.

        Raises:
            EngineError: it does not hold them afterwards.
        """
        p, held = self.policy, self.held
        if held is not None and (held.policy, held.vision) == (p.version, p.vision_version):
            return None
        if held is None:
            self.core.wake()
            self.core.whole += 1
        version = Version(policy=p.version, vision=p.vision_version, whole=self.core.whole)
        # a tower that does not train has the version that it was sent with; another one was loaded anew
        whole = held is None or (held.vision != p.vision_version and not p.vision_trains)
        self.held = None
        report = self.core.sync.send(p, version, whole=whole)
        self.held = version
        self.count_sync(report)
        self._probe_due |= self._syncs % self.probe_every == 0
        self._syncs += 1
        return report

    def probes(self, temperature: float) -> list[tuple[Prompt, Rollout]]:
        """Short answers to the first prompt of each place (`mismatch.place_of`) so far, where it is time to look at them."""
        if not self._probe_due or not self._probes:
            return []
        self._probe_due = False
        room = self.core.options.max_model_len - max(len(prompt.ids) for prompt in self._probes.values())  # 1 at least: they had answers
        settings = GenerationSettings(max_new_tokens=min(PROBE_TOKENS, room), temperature=temperature)
        requests = [Request(prompt=prompt, seeds=(0,), ks=(0,)) for prompt in self._probes.values()]
        answers = self.generate(requests, settings)
        return [(request.prompt, rollout) for request, (rollout,) in zip(requests, answers, strict=True)]

    def generate(self, requests: Sequence[Request], settings: GenerationSettings, done: Done | None = None) -> list[list[Rollout]]:
        """Rollouts of every request, in order. `done` is called with a request's number and rollouts as soon as its last answer has ended.

        Raises:
            ConfigError: a prompt with its answer is longer than the engine was started for.
            EngineError: the weights are not the policy's, or an answer was lost again and again.
            NumericsError: log-probs are not finite.
        """
        if self.held is None or (self.held.policy, self.held.vision) != (self.policy.version, self.policy.vision_version):
            raise EngineError(
                f"the engine holds weights {self.held}, and the policy is at version {self.policy.version}: call `ready` first"
            )
        require_room(requests, settings, self.core.options.max_model_len)
        return _Run(self, self.held, requests, settings, done).loop()

    def remember(self, prompt: Prompt) -> None:
        """Keep the first prompt of each place as a probe."""
        self._probes.setdefault(place_of(prompt), prompt)


class _Run:
    """One call of `generate`."""

    def __init__(self, engine: VllmEngine, version: Version, requests: Sequence[Request], settings: GenerationSettings, done: Done | None):
        self.engine, self.version, self.requests, self.settings = engine, version, requests, settings
        self.bundle = engine.policy.bundle
        more = {"version": version.policy, "done": done, "subject": engine.policy.subject}
        self.collected = CompletionCollector(requests, settings, self.bundle, engine, **more)
        self.open: dict[str, tuple[int, int]] = {}
        """Name of a running request -> (number of ours, answer)."""
        self.inputs: dict[int, Any] = {}

    def loop(self) -> list[list[Rollout]]:
        order = sorted(range(len(self.requests)), key=lambda i: (-self.requests[i].expected_tokens, i))
        try:
            for number in order:
                self.engine.remember(self.requests[number].prompt)
                for answer in range(len(self.requests[number].seeds)):
                    self._ask(number, answer)
            while self.open:  # an answer that is asked again comes in after the others have ended
                for name, answer in self.engine.core.finished():
                    if name in self.open:
                        self._take(*self.open.pop(name), answer)
        finally:
            self.engine.core.drop(list(self.open))
        return self.collected.rollouts()

    def _ask(self, number: int, answer: int) -> None:
        request = self.requests[number]
        if number not in self.inputs:
            self.inputs[number] = self.engine.inputs.engine_input(request.prompt, self.version)
        parameters = sampling_params(self.settings, request.seeds[answer], ends=self.bundle.end_ids, forbidden=self.bundle.forbidden_ids)
        self.open[self.engine.core.ask(self.inputs[number], parameters)] = number, answer

    def _take(self, number: int, k: int, answer: Completion) -> None:
        if not self.collected.take(number, k, answer):
            self._ask(number, k)
        elif self.collected.whole(number):
            del self.inputs[number]


def asked_once(
    path: str, policy: Policy, pixels: Pixels, prompts: Sequence[Prompt], settings: GenerationSettings
) -> list[Rollout | ConfigError]:
    """Answer prompts with a vLLM that is started for them, as a run's engine answers: weights, media and ids go the same way.

    Args:
        path: folder of the model.

    Returns:
        For each prompt its answer, or why vLLM does not take the model or the media.

    Raises:
        ConfigError: vLLM is not installed, or does not load.
        EngineError: not all weights arrive, or an answer is lost again and again.
    """
    longest = max(len(prompt.ids) for prompt in prompts) + settings.max_new_tokens
    cpu = platform() == "cpu"
    options = CoreOptions(
        path=path,
        revision=None,
        architecture=type(policy.model).__name__,
        dtype=_DTYPES[policy.compute],
        max_model_len=longest,
        max_num_seqs=8,
        memory=0.3,
        cache_bytes=2**28 if cpu else None,
        eager=True,
        block_size=32 if cpu else None,
        in_parts=not cpu,
        shares=not cpu or not keeps_states(policy.model.config),
        raw_pixels=policy.bundle.writer is None,
    )
    try:
        core = Core(options)
    except ConfigError as error:
        return [error for _ in prompts]
    try:
        engine = VllmEngine(core, policy, pixels)
        out: list[Rollout | ConfigError] = []
        with engine.ready():
            for prompt in prompts:
                try:
                    ((answer,),) = engine.generate([Request(prompt=prompt, seeds=(0,), ks=(0,))], settings)
                    out.append(answer)
                except ConfigError as error:
                    out.append(error)
        return out
    finally:
        core.close()
