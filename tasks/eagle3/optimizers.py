"""Optimizers, learning rate and the pull towards the base."""

import math

import torch
from torch import Tensor

from tasks.eagle3.drafter import Eagle3Drafter
from tasks.recipe import Training


def build_optimizers(drafter: Eagle3Drafter, training: Training) -> list[torch.optim.Optimizer]:
    """AdamW for everything, or Muon for the block's and the fusion's matrices and AdamW for the rest.

    Muon's update is scaled to the size of an AdamW update (``match_rms_adamw``, Moonlight, arXiv 2502.16982),
    so one learning rate serves both.
    """
    drafter.lm_head.requires_grad_(training.train_head)
    trainable = {name: p for name, p in drafter.named_parameters() if p.requires_grad}
    matrices = [p for name, p in trainable.items() if p.ndim == 2 and not name.startswith("lm_head")]
    on_muon = {id(p) for p in matrices} if training.optimizer == "muon" else set()
    rest = [p for p in trainable.values() if id(p) not in on_muon]
    shared = {"lr": training.learning_rate, "weight_decay": training.weight_decay}
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(rest, betas=(0.9, 0.95), fused=True, **shared)]
    if on_muon:
        optimizers.append(torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **shared))
    return optimizers


def learning_rate(step: int, steps: int, training: Training) -> float:
    """Learning rate of an optimizer step (from 0): linear warm-up, then a cosine to the final share."""
    warmup = max(1, round(training.warmup_share * steps))
    if step < warmup:
        return training.learning_rate * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    final = training.final_learning_rate_share
    return training.learning_rate * (final + (1 - final) * 0.5 * (1 + math.cos(math.pi * progress)))


def set_learning_rate(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Use ``rate`` in the next step."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def pull_to_base(drafter: Eagle3Drafter, base: dict[str, Tensor], weight: float) -> None:
    """Add the gradient of ``weight * |w - w_base|^2`` (L2-SP, arXiv 1802.01483)."""
    for name, parameter in drafter.named_parameters():
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - base[name], alpha=2 * weight)
