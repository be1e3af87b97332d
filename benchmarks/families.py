"""Block diffusion and expert models at their real shapes, with random weights: rollouts, updates, memory.

    python benchmarks/families.py --out families.json                       # needs a GPU with 140 GB
    python benchmarks/families.py --only sdar-8b-block-32 --out one.json
    python benchmarks/families.py --smoke                                   # tiny shapes, on a CPU too

Each case is a model and a block size. Measured are whole rollouts with the prefix cache, which is exact under
block-causal attention, the share of tokens that it leaves as they are (rounding apart, all), and LoRA updates
of c-DTM, in one block and in every block at once. Beside each rate stands the limit that its multiplications
allow at the rate of a large matrix product; of experts the active ones count. Beside each peak of memory
stands the estimate that `dtm fit` uses. LLaDA-8B with the same sizes is `benchmarks/llada8b.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtm.capacity.flops import rollout_flops, update_flops
from dtm.capacity.memory import TrainingShape, active_parameters, cache_bytes, estimate, parameters
from dtm.engine import Decoder, SampledConfidence, generate
from dtm.engine.draws import head_rows
from dtm.loop.replay import Replay
from dtm.masking import EveryBlock, MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import HELD, CDTMConfig
from dtm.models.adapters import LoRA
from dtm.models.policy import Policy
from dtm.models.routing import Experts
from dtm.models.shape import TransformerConfig
from dtm.models.storage import without_memory
from dtm.models.transformer import Transformer
from dtm.models.weights import place
from dtm.random import stream
from dtm.records import Phase, Prompts, Rollouts
from dtm.runs.environment import commit, environment
from measuring import GIB, Bench

SDAR_8B = TransformerConfig(
    vocab_size=151_936, mask_id=151_669, eos_id=151_643, width=4096, layers=36, heads=32, kv_heads=8,
    head_width=128, ffn=12_288, rope_base=1e6, norm_eps=1e-6, qk_norm=True, block_origin="token",
    family="sdar",
)  # fmt: skip
LLADA2_MINI = TransformerConfig(
    vocab_size=157_184, mask_id=156_895, eos_id=156_892, width=2048, layers=20, heads=16, kv_heads=4,
    head_width=128, ffn=5120, rope_base=600_000.0, rope_width=64, norm_eps=1e-6, qk_norm=True, fused_qkv=True,
    block_origin="token", family="llada2",
    experts=Experts(
        count=256, active=8, width=512, layers=tuple(range(1, 20)), score="sigmoid", bias="choice", groups=8,
        kept_groups=4, scale=2.5, shared=512,
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """A model, and the sizes it is measured with."""

    model: TransformerConfig
    block: int
    prompt: int = 172
    completion: int = 256
    batch: int = 128
    completions: int = 6
    """Of each prompt; they share the first pass."""
    rank: int = 128
    micro_batch: int = 12
    compared: int = 6
    """Rows that are decoded with and without the cache to compare."""

    @property
    def shape(self) -> TransformerConfig:
        """The model with its blocks."""
        return replace(self.model, attention_block=self.block)

    @property
    def length(self) -> int:
        """Columns of a row: whole blocks."""
        return -(-(self.prompt + self.completion) // self.block) * self.block

    @property
    def lora(self) -> LoRA:
        """The adapters."""
        return LoRA(rank=self.rank)


CASES = {
    "sdar-8b-block-4": Case(model=SDAR_8B, block=4),
    "sdar-8b-block-32": Case(model=SDAR_8B, block=32),
    "llada2.0-mini": Case(model=LLADA2_MINI, block=32),
}


def in_miniature(case: Case) -> Case:
    """The same case with tiny sizes: every code path, in seconds on a CPU."""
    model, experts = case.model, case.model.experts
    if experts is not None:
        experts = replace(experts, count=16, active=2, width=16, layers=(1,), shared=16)
    small = replace(
        model, vocab_size=99, mask_id=98, eos_id=1, width=32, layers=2, heads=4, kv_heads=2, head_width=8,
        ffn=48, rope_width=None if model.rope_width is None else 4, experts=experts,
    )  # fmt: skip
    sizes = {"prompt": 9, "completion": 16, "batch": 6, "completions": 2, "rank": 4, "micro_batch": 2}
    return replace(case, model=small, block=min(case.block, 8), compared=4, **sizes)


@dataclass
class Rig(Bench):
    """A bench, and the results of each case."""

    cases: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(self, name: str, **values: Any) -> None:
        """Keep the results of a case, and say them."""
        self.cases.setdefault(name, {}).update(values)
        self.keep(cases=self.cases)
        shown = {key: f"{value:.4g}" for key, value in values.items() if isinstance(value, int | float)}
        self.say(f"{name}: " + ", ".join(f"{key} {value}" for key, value in shown.items()))


# ── models ───────────────────────────────────────────────────────────────────────────────────────


def random_model(bench: Rig, shape: TransformerConfig) -> Transformer:
    """Weights of deviation 0.02, made tensor by tensor on the device; routers too, so that tokens spread."""
    model, noise = without_memory(shape), stream(0, "weights", device=bench.device)
    for name, value in list(model.named_parameters()):
        made = torch.ones(value.shape, device=bench.device, dtype=bench.dtype)
        if made.dim() > 1:
            made.normal_(0.0, 0.02, generator=noise)
        elif name.endswith("bias"):
            made.zero_()
        place(model, name, made, bench.dtype, bench.device)
    return model


def make_policy(bench: Rig, case: Case) -> Policy:
    """Student and a merged π_a over one random base."""
    policy = Policy(random_model(bench, case.shape), lora=case.lora, merge=True)
    for model in (policy.student, policy.teacher):
        model.to(bench.device)
    if bench.on_gpu:
        policy.compile()
    return policy


# ── rollouts ─────────────────────────────────────────────────────────────────────────────────────


def rollouts(bench: Rig, name: str, case: Case) -> None:
    """Whole rollouts with the prefix cache, and the tokens that it leaves as they are."""
    with bench.counted_memory() as peak:
        model = make_policy(bench, case).pi_a()
        noise = stream(0, "prompts", device=bench.device)
        count = -(-case.batch // case.completions)
        tokens = torch.randint(2, 90, (count, case.prompt), generator=noise, device=bench.device)
        asked = Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * count)

        def run(prompts: Prompts, cache: Any = "prefix", until: int | None = None) -> torch.Tensor:
            decoder = Decoder(
                order=SampledConfidence(), block=case.block, tokens_per_step=min(2, case.block), cache=cache
            )
            ended = None if until is None else lambda rows, _, written: [n >= until for n in written]
            with bench.autocast():
                done = generate(
                    model, prompts, case.completion, decoder, completions=case.completions, batch=case.batch,
                    ended=ended,
                )  # fmt: skip
            return done.written

        run(asked, until=2 * case.block)  # kernels are compiled and chosen
        rows = count * case.completions
        speed = rows / bench.seconds(lambda: run(asked), 1, warm=0)
        few = asked.select(range(-(-case.compared // case.completions)))
        same = float((run(few) == run(few, cache="none")).float().mean())
    flops = rollout_flops(
        case.shape, case.prompt, case.length - case.prompt, case.block, min(2, case.block), None,
        case.completions, prefix=True,
    )  # fmt: skip
    bench.add(
        name,
        rollouts_per_s=speed,
        rollouts_per_s_limit=bench.rate / flops,
        rollouts_share_of_limit=speed * flops / bench.rate,
        tokens_as_without_cache=same,
        tokens_per_rollout=case.length - case.prompt,
        cache_gib=cache_bytes(case.shape, case.batch, case.length, 2) / GIB,
        rollouts_peak_gib=peak["allocated"],
        rollouts_estimate_gib=_estimate(bench, case, decoding=True) / GIB,
    )


# ── updates ──────────────────────────────────────────────────────────────────────────────────────


def buffer(bench: Rig, case: Case) -> Replay:
    """Rollouts of random tokens and rewards."""
    noise, rows = stream(0, "buffer", device=bench.device), 4 * case.micro_batch
    shape = rows, case.length
    tokens = torch.randint(2, 90, shape, generator=noise, device=bench.device)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    written = torch.arange(case.length, device=bench.device) >= case.prompt
    drawn = Rollouts(
        tokens,
        everywhere,
        everywhere & written,
        torch.zeros_like(tokens),
        torch.zeros(shape, device=bench.device),
        torch.rand(rows, generator=noise, device=bench.device),
        torch.arange(rows, device=bench.device) // 2,
        0.0,
    )
    return Replay(drawn, 1.0)


def updates(bench: Rig, name: str, case: Case, every: bool) -> None:
    """LoRA updates of c-DTM: masks in one block, or in every block in a pass of twice the positions."""
    masking = EveryBlock(case.block) if every else MaskCount(case.block, in_columns=True)
    with bench.counted_memory() as peak:
        policy = make_policy(bench, case)
        replay, noise = buffer(bench, case), stream(0, "masks", device=bench.device)
        method, phase = CDTM(CDTMConfig(control_variate="one", guard=False)), Phase(0, 0.0, 1.0, 1.0)
        optimizer = torch.optim.AdamW(policy.trained(), lr=1e-5, fused=bench.on_gpu)
        policy.student.train()

        def update() -> None:
            for _ in range(4):
                drawn, weights, _ = replay.draw(case.micro_batch, 0.0, noise)
                states = masking.states(drawn, case.shape.mask_id, noise)
                with bench.autocast():
                    loss = method.loss(policy, states, weights, phase)
                torch.autograd.backward(loss.value)
            torch.nn.utils.clip_grad_norm_(policy.trained(), 2.0)
            optimizer.step()
            optimizer.zero_grad()

        speed = 4 * case.micro_batch / bench.seconds(update, 3, warm=2)
        del policy, optimizer
    scored = _scored(case, every)
    flops = update_flops(case.shape, case.length, scored, case.lora, 0, merged=True, doubled=every)
    prefix = "every_block_" if every else ""
    found = {
        "rows_per_s": speed,
        "rows_per_s_limit": bench.rate / flops,
        "rows_share_of_limit": speed * flops / bench.rate,
        "updates_peak_gib": peak["allocated"],
        "updates_estimate_gib": _estimate(bench, case, doubled=every) / GIB,
    }
    bench.add(name, **{prefix + key: value for key, value in found.items()})


def _scored(case: Case, every: bool) -> int:
    """Scored positions of a row, on average."""
    blocks = -(-(case.length - case.prompt) // case.block) if every else 1
    return blocks * (case.block + 1) // 2


def _estimate(bench: Rig, case: Case, decoding: bool = False, doubled: bool = False) -> int:
    """Bytes that `dtm fit` foresees, of decoding or of training."""
    size = torch.finfo(bench.dtype).bits // 8
    memory = estimate(
        case.shape,
        TrainingShape(
            rows=case.micro_batch,
            length=case.length,
            scored=_scored(case, doubled),
            rollouts=4 * case.micro_batch,
            lora=case.lora,
            doubled=doubled,
            compiled=bench.on_gpu,
            merged=True,
            held=max(1, HELD // case.shape.vocab_size),
            decoded=case.batch,
            candidates=min(case.batch * case.block, head_rows(case.shape.vocab_size)),
            cached=True,
            weight_bytes=size,
            compute_bytes=size,
        ),
    )
    if decoding:
        return memory.weights + memory.adapters + memory.rollouts
    return memory.persistent + memory.activations + memory.logits


PARTS: dict[str, Callable[[Rig, str, Case], None]] = {
    "rollouts": rollouts,
    "updates": partial(updates, every=False),
    "every-block": partial(updates, every=True),
}


def main() -> None:
    """Measure the chosen cases; a part that fails is reported, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measurements")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes")
    parser.add_argument("--out", type=Path, help="file for the results")
    options = parser.parse_args()
    bench = Rig(torch.device("cuda" if torch.cuda.is_available() else "cpu"), options.out)
    bench.keep(commit=commit(), environment=environment(), smoke=options.smoke)
    bench.matrix_product()
    for name in options.only:
        case = in_miniature(CASES[name]) if options.smoke else CASES[name]
        bench.add(name, parameters=parameters(case.shape), active_parameters=active_parameters(case.shape))
        for part in options.parts:
            try:
                PARTS[part](bench, name, case)
            except torch.cuda.OutOfMemoryError as problem:
                bench.say(f"{name}, {part}: out of memory")
                bench.cases[name][f"{part}_failed"] = str(problem).splitlines()[0]
                bench.keep(cases=bench.cases)
                bench.empty()


if __name__ == "__main__":
    main()
