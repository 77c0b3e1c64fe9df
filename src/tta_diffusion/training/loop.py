"""The training loop."""

from __future__ import annotations

import math
import os
import shutil
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from tta_diffusion.data.store import MixtureSampler, TokenStore
from tta_diffusion.data.tokenizer import load_tokenizer
from tta_diffusion.pipeline import CONTROLS, TTAPipeline
from tta_diffusion.training import checkpoints
from tta_diffusion.training.batches import MicroBatch, check_shares, stream
from tta_diffusion.training.config import TrainConfig
from tta_diffusion.training.distributed import Group, forget_gathered, parallelise, setup, skip_sync
from tta_diffusion.training.lengths import open_data
from tta_diffusion.training.log import RunLog
from tta_diffusion.training.record import check_same_data, check_same_model, describe, model_card, write_record
from tta_diffusion.training.regimes import regime_of
from tta_diffusion.training.state import TrainState
from tta_diffusion.training.throughput import Stopwatch, flops_per_token, peak_flops
from tta_diffusion.training.times import TimeSampler, learning_rate, training_grids
from tta_diffusion.training.validate import sample_texts, validation_loss

MODEL, CHECKPOINTS = "model", "checkpoints"


class Run:
    """One training run: built, resumed where its directory holds a checkpoint, and trained to its last step."""

    def __init__(self, config: TrainConfig, group: Group | None = None) -> None:
        self.config, self.group = config, group or setup()
        self.out, self.regime = Path(config.out), regime_of(config)
        check_shares(config, self.group)
        self.store = TokenStore.open(config.data)
        self.data = open_data(self.store, config)
        torch.set_float32_matmul_precision("high")
        torch.manual_seed(config.run.seed)
        self.model = self.regime.objective(self.regime.build(config, self.store)).to(self.group.device)
        self.runner = self._runner()
        grids = training_grids(config.time, self.model.alpha_bar, self.model.vocab_size)
        times = TimeSampler(config.time, grids=grids)
        self.state = TrainState(self.model, config.optim, times, self.group.device)
        self.record = describe(config, self.store, self.group.size)
        self._resume()
        if self.group.main:
            self.out.mkdir(parents=True, exist_ok=True)
            write_record(self.out, self.record)

    def _runner(self) -> nn.Module:
        """The model as it is called: compiled in parts, then parallel."""
        if self.config.run.compile:
            self.model.compile_parts()
        return parallelise(self.model, self.group, self.config.run.sharding)

    def _resume(self) -> None:
        found = checkpoints.load_latest(self.out / CHECKPOINTS)
        if found is not None:
            tensors, scalars = found
            check_same_model(self.out, self.config)
            check_same_data(scalars, self.store)
            self.state.restore(tensors, scalars)

    def train(self) -> Path:
        """Trains to the last step (or the time limit) and writes the model; returns its directory."""
        config, state = self.config, self.state
        log = RunLog(
            self.out, self.group.main, config.optim.steps, state.step, config.run.report_to, self.record["config"]
        )
        begun, watch = time.monotonic(), Stopwatch()
        tokens = 0
        batches = stream(self.data, config, state.times, self.group, state.step)
        self.runner.train()
        try:
            for micro_batches in batches:
                state.losses.append(self._accumulate(micro_batches))
                lr = self._rate()
                norm = state.update(lr, config.optim.clip)
                tokens += config.optim.batch * self.store.length
                log.advance()
                end = state.step == config.optim.steps
                if state.step % config.run.log_every == 0 or state.step == 1 or end:
                    self._report(log, lr, norm, watch.read(tokens))
                last = end or self._late(begun)
                if state.step % config.run.eval_every == 0 or last:
                    self._evaluate(log)
                    watch.reset(tokens)
                if state.step % config.run.save_every == 0 or last:
                    self.save(norm)
                    watch.reset(tokens)
                if last:
                    break
        finally:
            log.close()
        return self.export()

    def _late(self, begun: float) -> bool:
        limit = self.config.run.minutes
        return limit is not None and self.group.agree(time.monotonic() - begun > 60 * limit)

    def _accumulate(self, micro_batches: list[MicroBatch]) -> Tensor:
        """Gradients of the mean loss over the whole batch; returns this process's part of that mean."""
        config, group = self.config, self.group
        count = config.optim.batch // config.optim.micro_batch
        total = torch.zeros((), device=group.device)
        for i, micro in enumerate(micro_batches):
            micro = micro.to(group.device)
            torch.manual_seed(micro.seed)
            with skip_sync(self.runner, i < len(micro_batches) - 1):
                enabled = config.run.precision == "bf16"
                with torch.autocast(group.device.type, torch.bfloat16, enabled=enabled):
                    given = (micro.ids, micro.pinned, micro.shared, micro.times, micro.earlier, micro.form)
                    loss = self.runner(*given, **micro.told)
                weight = self._weights(micro)
                mean = (loss * weight).sum() / weight.sum().clamp_min(1)
                # Processes average their gradients; each holds count / size of the micro-batches.
                (mean * group.size / count).backward()
            total += mean.detach() * group.size / count
            if config.time.sampler == "loss-aware" and self.state.step % 10 == 0:
                self._observe(micro.shared, (loss * weight).sum(-1) / weight.sum(-1).clamp_min(1))
        return total

    def _weights(self, micro: MicroBatch) -> Tensor:
        """(B, L): 0 where pinned, `pad_weight` on padding, 1 elsewhere."""
        padding = micro.ids == self.store.special_ids.get("pad", -1)
        weight = torch.where(padding, self.config.condition.pad_weight, 1.0)
        return weight.masked_fill(micro.pinned, 0.0)

    def _observe(self, shared: Tensor, loss: Tensor) -> None:
        """Feeds the loss-aware sampler with what all processes saw, in one order."""
        pair = torch.stack([shared, loss.detach()])
        if self.group.size > 1:
            parts = [torch.empty_like(pair) for _ in range(self.group.size)]
            torch.distributed.all_gather(parts, pair)
        else:
            parts = [pair]
        # One micro-batch at a time, in their order: the curve must not depend on the number of processes.
        for u, value in (part.cpu() for part in parts):
            self.state.times.observe(u, value)

    def _rate(self) -> float:
        o = self.config.optim
        return learning_rate(self.state.step, o.steps, o.lr, o.warmup, o.schedule, o.final_lr)

    def _require_finite(self, *values: float) -> None:
        if not all(map(math.isfinite, values)):
            raise ValueError(
                f"the loss is not a number at step {self.state.step}: lower optim.lr or train in fp32; the last "
                "checkpoint is intact"
            )

    def _report(self, log: RunLog, lr: float, norm: Tensor, rate: float) -> None:
        loss = float(self.group.mean(torch.stack(self.state.losses).mean()))
        self._require_finite(loss, float(norm))
        self.state.losses = []
        values = {"loss": loss, "lr": lr, "grad_norm": float(norm), "tokens_per_second": rate}
        peak = peak_flops(self.group.device)
        if peak:
            condition = self.config.condition
            each = flops_per_token(self.model.denoiser, condition.self_condition, condition.rollout)
            values["mfu"] = rate * each / (peak * self.group.size)
        log.metrics(self.state.step, **values)

    def _evaluate(self, log: RunLog) -> dict[str, float]:
        """Validation loss of the averaged weights, and a few texts, on the main process."""
        sharded = self.config.run.sharding == "fsdp" and self.group.size > 1
        if not self.store.count("validation") or (not self.group.main and not sharded):
            self.group.barrier()
            return {}
        self.state.swap_ema()
        self.model.eval()
        result = validation_loss(self.model, MixtureSampler(self.store, "validation"), self.config)
        texts = (
            [] if sharded or not self.config.run.samples else sample_texts(self.model, self._pipeline(), self.config)
        )
        self.model.train()
        forget_gathered(self.model)
        self.state.swap_ema()
        log.metrics(self.state.step, **result, **({"texts": texts} if texts else {}))
        for text in texts:
            log.say("  " + text)
        self.group.barrier()
        return result

    def save(self, norm: Tensor) -> None:
        """A complete checkpoint, if the losses since the last report and the last gradient's norm are numbers."""
        losses = self.group.mean(torch.stack(self.state.losses)).tolist() if self.state.losses else []
        self._require_finite(*losses, float(norm))
        tensors = self.state.tensors()
        if self.group.main:
            extra = {k: self.record[k] for k in ("data_fingerprint", "vocab_size")}
            scalars = {**self.state.scalars(), "losses": losses, **extra}
            checkpoints.save(self.out / CHECKPOINTS, self.state.step, tensors, scalars, self.config.run.keep)
        self.group.barrier()

    def export(self) -> Path:
        """The averaged weights as a model directory: denoiser, tokenizer, card, and the controls of the one before."""
        target, temporary = self.out / MODEL, self.out / f".{MODEL}.tmp"
        averaged = self.state.tensors().get("ema") or self.state.tensors()["weights"]
        if self.group.main:
            shutil.rmtree(temporary, ignore_errors=True)
            with checkpoints.no_half(temporary, f"the model was not written to '{target}', the checkpoints are intact"):
                self._write_model(temporary, averaged)
                if (target / CONTROLS).is_dir():
                    shutil.copytree(target / CONTROLS, temporary / CONTROLS)
            shutil.rmtree(target, ignore_errors=True)
            os.replace(temporary, target)
        self.group.barrier()
        return target

    def _write_model(self, directory: Path, averaged: dict[str, Tensor]) -> None:
        denoiser = self.regime.build(self.config, self.store)
        named = {name.removeprefix("denoiser."): value for name, value in averaged.items()}
        denoiser.load_state_dict(named, strict=False)
        TTAPipeline(denoiser, load_tokenizer(self.store.tokenizer_dir)).save_pretrained(directory)
        result = {}
        if self.store.count("validation"):
            probe = self.regime.objective(denoiser.eval()).to(self.group.device)
            result = validation_loss(probe, MixtureSampler(self.store, "validation"), self.config)
        card = model_card(self.config, self.store, denoiser, self.state.step, result)
        (directory / "README.md").write_text(card)
        write_record(directory, self.record | {"step": self.state.step, "validation": result})

    def _pipeline(self) -> TTAPipeline:
        return TTAPipeline(self.model.denoiser, load_tokenizer(self.store.tokenizer_dir))
