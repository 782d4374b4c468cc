"""The configuration of one run: typed, closed, frozen.

Every key says what it means, and whether it belongs to the run's identity (what is computed: another value is another
run, which starts anew) or to its execution (where and how it is computed: may change between attempts). Reading files,
merging them and reporting errors belong to `sheet`; JSON Schema and the key table to `schema`.
"""

from trainpkg.config.execution import Launch, Slurm, Smoke
from trainpkg.config.keys import Section, flatten
from trainpkg.config.optimisation import Ema, Optim
from trainpkg.config.run import Run, Workflow, disagreements
from trainpkg.config.sources import (
    Data,
    DigitsData,
    HuggingFaceData,
    ImageFolderData,
    OwnData,
    Pixels,
    PythonTextData,
    TableData,
    TokensData,
    WebDatasetData,
)
from trainpkg.config.training import Checkpoint, Ddp, Evaluate, Fsdp, Logging, Profile
from trainpkg.config.work import ConvModel, Entry, GPTModel, Model, OwnModel, Train, ViTModel

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
    "HuggingFaceData",
    "ImageFolderData",
    "Launch",
    "Logging",
    "Model",
    "Optim",
    "OwnData",
    "OwnModel",
    "Pixels",
    "Profile",
    "PythonTextData",
    "Run",
    "Section",
    "Slurm",
    "Smoke",
    "TableData",
    "TokensData",
    "Train",
    "ViTModel",
    "WebDatasetData",
    "Workflow",
    "disagreements",
    "flatten",
]
