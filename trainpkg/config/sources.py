"""The section `data`: which samples there are, where they lie, what is made of them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Tag

from trainpkg.config.keys import Section, execution, identity, later
from trainpkg.config.names import Kwargs, OwnName, by_name


class Loading(Section):
    """What all data sets have."""

    workers: int | None = execution(
        None,
        "Processes per rank that prepare batches ahead; 0: the rank itself. Left out: 0 for data in memory, else the "
        "rank's share of the node's CPUs less one, 8 at most.",
        ge=0,
    )


class DigitsData(Loading):
    """The 1,797 handwritten digits (8 x 8 pixels) that ship with scikit-learn."""

    name: Literal["digits"]
    shift: int = identity(0, "Pixels that training images are moved by at most, anew in each epoch.", ge=0, le=3)
    test_fraction: float = identity(0.2, "Share of the images held out for evaluation.", gt=0, lt=1)


class PythonTextData(Loading):
    """The source text of Python's standard library on this machine, as bytes."""

    name: Literal["python_text"]
    max_bytes: int = identity(4_000_000, "Bytes used, training and validation together.", ge=10_000)
    validation_fraction: float = identity(0.05, "Share of the files held out for validation.", gt=0, lt=1)
    context: int | None = later(None, "Tokens per sample; left out: model.context.", ge=1)


class Held(Loading):
    """Files of the user's, a part of which is held out. Nothing is ever downloaded or written."""

    validation: str | None = identity(
        None, "Held-out samples (a path, or the name of a split); left out: a share of the training samples."
    )
    validation_fraction: float = identity(
        0.1, "That share, chosen by a hash of each sample's name or number.", gt=0, lt=1
    )


class Pixels(Held):
    """What decoded images become: float32 [channels, side, side] in [-1, 1]."""

    side: int = identity(32, "Side of the images in pixels: scaled by the shorter one, cut to the centre.", ge=1)
    channels: Literal[1, 3] = identity(3, "1: grey; 3: colours.")
    augment: Literal["none", "crop", "crop_flip"] = identity(
        "none", "What happens to training images: a random part (at least 35 % of the area), and mirrored at random."
    )
    transform: OwnName | None = identity(
        None,
        "Makes what else happens to training images, before that: a callable from a PIL image to one, such as "
        "torchvision.transforms.v2:RandAugment.",
    )
    transform_kwargs: Kwargs = identity({}, "Arguments of its class or function.")


class ImageFolderData(Pixels):
    """Images in a folder per class."""

    name: Literal["image_folder"]
    path: str = identity(..., "Folder of one folder per class, at any depth below.")


class WebDatasetData(Pixels):
    """WebDataset shards: tar files in which the files of a sample stand together and share their name up to a dot."""

    name: Literal["webdataset"]
    path: str = identity(..., "The shards: a pattern as shards/train-*.tar or shards/train-{0000..0031}.tar.")
    inputs: str = identity("jpg;jpeg;png", "Extensions of a sample's input, the first that is there; also npy, pth.")
    target: str = identity("cls", "Extension of its target: cls (a number); also npy, json.")


class TokensData(Held):
    """Memory-mapped token files, as `trainpkg tokenize` and nanoGPT write them."""

    name: Literal["tokens"]
    path: str = identity(..., "Folder of train.bin, validation.bin (or val.bin) and, by trainpkg tokenize, meta.json.")
    dtype: Literal["uint8", "uint16", "uint32"] = identity("uint16", "Type of the numbers where meta.json is missing.")
    context: int | None = identity(None, "Tokens per sample; left out: model.context.", ge=1)


class TableData(Held):
    """Columns of CSV or Parquet files, in memory."""

    name: Literal["table"]
    path: str = identity(..., "A .csv or .parquet file, or a pattern of several.")
    inputs: tuple[str, ...] = identity((), "Columns that are the input; left out: all others that are numbers.")
    target: str = identity(..., "Column of the target: whole numbers or text are classes, others float32.")
    standardise: bool = identity(True, "Inputs less their mean over their deviation, of the training rows.")


class HuggingFaceData(Held):
    """A Hugging Face `datasets` folder, as save_to_disk writes it."""

    name: Literal["hf_dataset"]
    path: str = identity(..., "The folder.")
    split: str = identity("train", "Training split, where the folder holds several.")
    inputs: str = identity(..., "Column of the input: numbers, lists of equal length, images.")
    target: str | None = identity(None, "Column of the target; left out: the input's next token (lists).")
    transform: OwnName | None = identity(
        None, "Makes a callable from a row (a mapping) to (input, target), in place of inputs and target."
    )
    transform_kwargs: Kwargs = identity({}, "Arguments of its class or function.")


class OwnData(Loading):
    """A data set of the user's own: (training, held-out) samples that a class or function gives."""

    name: OwnName
    kwargs: Kwargs = later({}, "Arguments of your own class or function.")
    context: int | None = later(None, "Tokens per sample, where samples are sequences; for the tables.", ge=1)


Data = Annotated[
    Annotated[DigitsData, Tag("digits")]
    | Annotated[PythonTextData, Tag("python_text")]
    | Annotated[ImageFolderData, Tag("image_folder")]
    | Annotated[WebDatasetData, Tag("webdataset")]
    | Annotated[TokensData, Tag("tokens")]
    | Annotated[TableData, Tag("table")]
    | Annotated[HuggingFaceData, Tag("hf_dataset")]
    | Annotated[OwnData, Tag("own")],
    by_name("digits, python_text, image_folder, webdataset, tokens, table, hf_dataset"),
]
