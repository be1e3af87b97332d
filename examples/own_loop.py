"""Discrete Tilt Matching in a plain PyTorch loop: a `transformers` model, a PEFT adapter, no trainer.

    python examples/own_loop.py

A tiny BERT-like model writes eight digits after a prompt of one; the reward is the share of even digits. The
student and π_a are two adapters over the same weights, so nothing is copied. Runs for half a minute on a CPU.
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from transformers import BertConfig, BertForMaskedLM

import dtm
from dtm.engine import generate
from dtm.losses import AdaptiveControl, c_dtm, weigh
from dtm.masking import sample

DIGITS, MASK, LENGTH, STEP = 10, 10, 8, 3.0


def main(phases: int = 3, steps: int = 60, seed: int = 0) -> list[float]:
    """Tilt the model by STEP in each phase; return the mean reward before every phase and at the end."""
    torch.manual_seed(seed)
    shape = BertConfig(
        vocab_size=DIGITS + 1,
        max_position_embeddings=16,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
    )
    bert = BertForMaskedLM(shape).eval()
    adapter = LoraConfig(r=8, lora_alpha=16, target_modules=["query", "key", "value", "dense"])
    model = get_peft_model(bert, adapter, adapter_name="student")
    model.add_adapter("pi_a", adapter)
    pi = dtm.HuggingFaceDenoiser(model, mask_id=MASK, eos_id=0)
    prompts = torch.arange(DIGITS).repeat(8)[:, None]
    group = torch.arange(len(prompts)).repeat_interleave(8)
    noise, rewards = torch.Generator().manual_seed(seed), []

    def log_pi(name: str, states: dtm.records.MaskedStates) -> torch.Tensor:
        model.set_adapter(name)
        return pi(states.tokens, None, states.scored)

    for phase in range(phases + 1):
        # π_a ← student (in the first phase both equal the base), and rollouts of it
        set_peft_model_state_dict(model, get_peft_model_state_dict(model, adapter_name="student"), "pi_a")
        model.set_adapter("pi_a")
        drawn = generate(pi, prompts, LENGTH, seed=phase, completions=8)
        reward = (drawn.tokens[:, 1:] % 2 == 0).float().mean(1)
        rewards.append(float(reward.mean()))
        weights, control = weigh(reward, group, STEP), AdaptiveControl()
        model.set_adapter("student")
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
        for _ in range(steps if phase < phases else 0):
            rows = torch.randint(len(drawn), (128,), generator=noise)
            states = sample(drawn.tokens[rows], drawn.is_completion[rows], MASK, noise)
            row_weight, log_weight = states.row_weight[states.row], weights.log_weight[rows][states.row]
            with torch.no_grad():
                teacher = log_pi("pi_a", states)
            student = log_pi("student", states)
            position = c_dtm(student, teacher, states.x1, log_weight, control.value, bound=STEP)
            loss = (row_weight * position).sum() / len(states) / LENGTH
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            control.observe(student.detach(), teacher, states.x1, log_weight, row_weight)
    return rewards


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("mean reward at a = 0, 3, 6, 9: " + ", ".join(f"{reward:.3f}" for reward in main()))
