"""Each option of CoreNet that decides how a run is launched, trained, saved and told, and its name here.

Keys are as in CoreNet's YAML (`ddp.find_unused_params` is `--ddp.find-unused-params`). The table of docs/corenet.md is
made from this one; `trainpkg convert corenet` quotes it for each line that has no counterpart.
"""

from __future__ import annotations

from collections.abc import Mapping

RANKS = "no key: the launcher counts ranks and offsets from the nodes that answer"
YOURS = "which you name as `package.module:name` with its own `kwargs` (docs/own-model.md)"

PIPELINES: Mapping[str, str] = {
    "default": "`strategy: ddp`",
    "fsdp_train_eval_pipeline": "`strategy: fsdp`, or `hsdp`: sharded inside each node",
}

NAMES: Mapping[str, str] = {
    "train_eval_pipeline.name": "`strategy`; " + "; ".join(f"{name} is {ours}" for name, ours in PIPELINES.items()),
    "ddp.rank": f"{RANKS}. For `launch.command` it is {{rank_offset}}",
    "ddp.world_size": f"{RANKS} (`launch.nodes` x `launch.gpus_per_node` are asked of Slurm)",
    "ddp.dist_url": "no key: the address is proven between all nodes. `launch.master_addr` sets one",
    "ddp.dist_port": "no key: chosen per job and held for rank 0. `launch.port` takes one, or a range",
    "ddp.device_id": "no key (CoreNet overwrites it): each rank takes its own. `launch.devices` takes a subset",
    "ddp.backend": "`launch.dist_backend`: auto is nccl on GPUs, gloo on CPUs",
    "ddp.find_unused_params": "`ddp.find_unused_parameters`",
    "ddp.use_deprecated_data_parallel": "not here: one process per GPU",
    "fsdp.sharding_strategy": "full_shard: `strategy: fsdp`; grad_op_shard: with `fsdp.reshard_after_forward: false`; "
    "no_shard: `strategy: ddp`",
    "fsdp.backward_prefetching": "not here: FSDP2 fetches ahead by itself",
    "fsdp.parameter_datatype": "`train.precision`: bf16, fp16 (with a gradient scaler) or fp32",
    "fsdp.gradient_reduction_datatype": "always fp32",
    "fsdp.buffer_datatype": "no key: buffers keep their own type",
    "fsdp.limit_all_gathers": "no key: FSDP2 bounds what it has gathered",
    "fsdp.cpu_offload": "`fsdp.cpu_offload`",
    "taskname": "the column `run` of the sheet is the name that all tables use",
    "common.seed": "`seed`; here it reaches the ranks",
    "common.config_file": "the column `recipe` of the sheet",
    "common.results_loc": "`results_dir` of config.yaml",
    "common.logs_loc": "no key (CoreNet reads it nowhere): a log per node and rank in results/runs/RUN/launch/",
    "common.run_label": "the column `run` of the sheet; no two runs share a directory",
    "common.eval_stage_name": "the records of `evaluate` say their source",
    "common.resume": "always on: a run goes on from its newest whole checkpoint. CoreNet's .pt files are not read",
    "common.auto_resume": "always on",
    "common.finetune": "`train.init_from`: a checkpoint or model folder in safetensors, not CoreNet's .pt",
    "common.finetune_ema": "`train.init_from` as well",
    "common.mixed_precision": "`train.precision`; with CoreNet's FSDP fsdp.parameter_datatype says it",
    "common.mixed_precision_dtype": "`train.precision`: bf16 or fp16 (with a gradient scaler, also when sharded)",
    "common.accum_freq": "`train.accumulation`; `train.global_batch` counts all micro-batches, the loss is their mean",
    "common.accum_after_epoch": "not here: `train.global_batch` is the same from the first step",
    "common.log_freq": "`logging.every_steps`",
    "common.grad_clip": "`optim.clip_norm`",
    "common.k_best_checkpoints": "`checkpoint.keep_best`; they are not averaged (section `ema` averages weights)",
    "common.save_all_checkpoints": "`checkpoint.keep_every_steps`",
    "common.save_interval_freq": "`checkpoint.every_steps`; `checkpoint.keep_every_steps` for those that stay",
    "common.channels_last": "not here: your model can say it (`self.to(memory_format=...)`)",
    "common.tensorboard_logging": "`logging.trackers: [tensorboard]`",
    "common.file_logging": "always on: metrics.jsonl, a line per record",
    "common.override_kwargs": "a column of the sheet, for one run",
    "common.enable_coreml_compatible_module": "not here",
    "common.debug_mode": "not here; section `profile` looks inside steps, `trainpkg doctor` at the machine",
    "common.eval_every_k_iterations": "`logging.eval_every_steps`",
    "common.set_grad_to_none": "always so",
    "dataset.train_batch_size0": "`train.global_batch`: over all ranks and micro-batches",
    "dataset.val_batch_size0": "`evaluate.batch`, per rank; evaluation is exact, no sample counts twice",
    "dataset.eval_batch_size0": "`evaluate.batch`, per rank; evaluation is exact, no sample counts twice",
    "dataset.workers": "`data.workers`, per rank, in the section `data` that you write",
    "dataset.persistent_workers": "always so",
    "dataset.percentage_of_samples": "your data set's; --samples counts what is left",
    "dataset.pin_memory": "always so on GPUs",
    "dataset.prefetch_factor": "no key: enough batches ahead, at least two per worker",
    "sampler.num_repeats": "passes in `train.max_steps` are that much longer; repeating is your data set's",
    "sampler.truncated_repeat_aug_sampler": "with it a pass is as long as without repeats",
    "dataset.disable_val": "`logging.eval_every_steps`: the last step always evaluates",
    "optim.name": "`optim.name`: sgd and adamw",
    "optim.eps": "not here: 1e-8 (CoreNet ignores this one too)",
    "optim.weight_decay": "`optim.weight_decay`",
    "optim.no_decay_bn_filter_bias": "`optim.decay`: matrices, or all",
    "optim.bypass_parameters_check": "not here: every parameter that wants gradients is optimised",
    "optim.adamw.beta1": "`optim.beta1`",
    "optim.adamw.beta2": "`optim.beta2`",
    "optim.adamw.eps": "not here: 1e-8",
    "optim.adamw.amsgrad": "not here",
    "optim.adam.beta1": "`optim.beta1`",
    "optim.adam.beta2": "`optim.beta2`",
    "optim.adam.amsgrad": "not here",
    "optim.sgd.momentum": "`optim.momentum`",
    "optim.sgd.nesterov": "not here",
    "scheduler.name": "`optim.schedule`: cosine; polynomial of power 1 is linear; fixed is constant",
    "scheduler.lr": "`optim.lr`; CoreNet's schedules have their own and ignore this one",
    "scheduler.is_iteration_based": "always: `train.max_steps` counts optimiser steps, and the rate changes at each",
    "scheduler.max_iterations": "`train.max_steps` (CoreNet does one more)",
    "scheduler.max_epochs": "`train.max_steps`: epochs x steps per epoch (--samples)",
    "scheduler.warmup_iterations": "`optim.warmup_steps`",
    "scheduler.warmup_init_lr": "not here: the warm-up begins at `optim.lr` / `optim.warmup_steps`",
    "scheduler.adjust_period_for_epochs": "always so: the schedule after the warm-up ends with the run",
    "scheduler.cosine.max_lr": "`optim.lr`",
    "scheduler.cosine.min_lr": "`optim.min_lr_ratio`: a share of `optim.lr`",
    "scheduler.polynomial.start_lr": "`optim.lr`",
    "scheduler.polynomial.end_lr": "`optim.min_lr_ratio`: a share of `optim.lr`",
    "scheduler.polynomial.power": "1 alone, as `optim.schedule: linear`",
    "scheduler.fixed.lr": "`optim.lr`",
    "ema.enable": "the section `ema`",
    "ema.momentum": "`ema.decay`: 1 less the momentum",
    "model.activation_checkpointing": "`train.activation_checkpointing`",
    "stats.train": "your task's metrics, all of them",
    "stats.val": "your task's metrics, all of them",
    "stats.checkpoint_metric": "your task says which of its metrics is the best one, and whether more is better",
    "stats.checkpoint_metric_max": "your task says which of its metrics is the best one, and whether more is better",
}  # fmt: skip

# beginnings of keys -> whose they are here
FAMILIES: Mapping[str, str] = {
    "_anchor": "a name inside the YAML file, no option",
    "dataset.": f"part of your data set, {YOURS}",
    "image_augmentation.": f"transforms are part of your data set, {YOURS}",
    "audio_augmentation.": f"transforms are part of your data set, {YOURS}",
    "frame_augmentation.": f"transforms are part of your data set, {YOURS}",
    "video_reader.": f"part of your data set, {YOURS}",
    "text_tokenizer.": f"part of your data set, {YOURS}",
    "sampler.": "order and shares are the trainer's: each sample once per epoch, whatever the number of ranks; sizes "
    "of images are your data set's",
    "model.": f"part of your model, {YOURS}",
    "anchor_generator.": f"part of your model, {YOURS}",
    "matcher.": f"part of your task, {YOURS}",
    "lm_eval_wrapper.": "evaluation is your task's; other harnesses take an export (docs/own-model.md)",
    "loss.": f"the loss is part of your task, {YOURS}",
    "stats.": f"metrics are part of your task, {YOURS}",
    "scheduler.multi_step.": "not here: cosine, linear, constant and wsd are",
    "scheduler.cyclic.": "not here: cosine, linear, constant and wsd are",
}
UNKNOWN = "nothing here reads it"


def about(key: str) -> str:
    """What an option is called here, or why it is not."""
    if key in NAMES:
        return NAMES[key]
    return next((text for begin, text in FAMILIES.items() if key.startswith(begin)), UNKNOWN)


def option(key: str) -> str:
    """The option of CoreNet's command line that a key of its YAML stands for."""
    return "--" + key.replace("_", "-")


def table() -> str:
    """All options, as Markdown."""
    rows = [f"| `{option(key)}` | {text} |" for key, text in NAMES.items()]
    rows += [f"| `{option(key)}*` | {text} |" for key, text in FAMILIES.items() if key != "_anchor"]
    return "\n".join(["| CoreNet | here |", "|---|---|", *rows])
