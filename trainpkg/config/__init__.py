"""The configuration of one run: typed, closed, frozen.

Every key says what it means, and whether it belongs to the run's identity (what is computed: another value is another
run, which starts anew) or to its execution (where and how it is computed: may change between attempts). Reading files,
merging them and reporting errors belong to `sheet`; JSON Schema and the key table to `schema`.
"""

from trainpkg.config.execution import Checkpoint, Evaluate, Fsdp, Launch, Logging, Slurm, Smoke
from trainpkg.config.keys import Section, flatten
from trainpkg.config.run import Run, Workflow, disagreements
from trainpkg.config.work import (
    ConvModel,
    Data,
    DigitsData,
    Entry,
    GPTModel,
    Model,
    Optim,
    PythonTextData,
    Train,
    ViTModel,
)

__all__ = [
    "Checkpoint",
    "ConvModel",
    "Data",
    "DigitsData",
    "Entry",
    "Evaluate",
    "Fsdp",
    "GPTModel",
    "Launch",
    "Logging",
    "Model",
    "Optim",
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
