"""The configuration of one run: typed, closed, frozen.

Every key says what it means, and whether it belongs to the run's identity (what is computed: another value is another
run, which starts anew) or to its execution (where and how it is computed: may change between attempts). Reading files,
merging them and reporting errors belong to `sheet`; JSON Schema and the key table to `schema`.
"""

from trainpkg.config.execution import Launch, Slurm, Smoke
from trainpkg.config.keys import Section, flatten
from trainpkg.config.optimisation import Ema, Optim
from trainpkg.config.run import Run, Workflow, disagreements
from trainpkg.config.training import Checkpoint, Ddp, Evaluate, Fsdp, Logging, Profile
from trainpkg.config.work import (
    ConvModel,
    Data,
    DigitsData,
    Entry,
    GPTModel,
    Model,
    PythonTextData,
    Train,
    ViTModel,
)

__all__ = [
    "Checkpoint",
    "ConvModel",
    "Data",
    "Ddp",
    "DigitsData",
    "Ema",
    "Entry",
    "Evaluate",
    "Fsdp",
    "GPTModel",
    "Launch",
    "Logging",
    "Model",
    "Optim",
    "Profile",
    "PythonTextData",
    "Run",
    "Section",
    "Slurm",
    "Smoke",
    "Train",
    "ViTModel",
    "Workflow",
    "disagreements",
    "flatten",
]
