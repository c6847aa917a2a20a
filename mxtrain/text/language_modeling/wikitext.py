"""WikiText-2 and WikiText-103, in their published files."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Optional, Sequence

import pydantic
from typing_extensions import Annotated

from mxtrain.data.checking.problems import Findings
from mxtrain.data.loading.dataset_files import exists
from mxtrain.data.loading.public_files import PublicDataset
from mxtrain.data.recognition import Certainty, FileTree, Recognised
from mxtrain.data.spec import Splits
from mxtrain.errors import DataError
from mxtrain.text.language_modeling.plain_text import PlainText
from mxtrain.text.tokenizing.kinds import TokenizerKind
from mxtrain.types import PathText

SPLITS = {"train": "wiki.train.tokens", "val": "wiki.valid.tokens", "test": "wiki.test.tokens"}


class WikiText(PublicDataset, PlainText):
    """Articles of Wikipedia, divided into words.

    Source: Merity et al., https://arxiv.org/abs/1609.07843.
    """

    root: PathText = "data/wikitext"
    """Folder of wikitext-2 or wikitext-103, each with wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens; by
    default in the folder that MXTRAIN_DATA names, else in data/."""
    version: Literal["2", "103"] = "2"
    """2 = 2 million words, 103 = 103 million words."""
    tokenizer: TokenizerKind = "words"
    vocab_size: Annotated[int, pydantic.Field(ge=100)] = 1_000_000

    option: ClassVar[str] = "wikitext"

    @classmethod
    def recognise(cls, files: FileTree) -> Optional[Recognised]:
        """See `Recognising`."""
        found = files.named("wiki.train.tokens")
        folders = [name.rpartition("/")[0] for name in found if name.rpartition("/")[0].startswith("wikitext-")]
        if not folders:
            return None
        version = folders[0].rpartition("-")[2]
        return Recognised(
            "WikiText", {"root": files.typed(), "version": int(version)}, certainty=Certainty.SURE, is_quick=False
        )

    @pydantic.model_validator(mode="after")
    def _check_own_files(self) -> WikiText:
        if self.train or self.val or self.test:
            raise ValueError(
                "train, val and test are the files in root. Leave them out, or type dataset=plain_text for your own "
                "files"
            )
        return self

    @pydantic.field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, version: object) -> object:
        return str(version) if isinstance(version, int) else version

    @property
    def public_names(self) -> Sequence[str]:
        """Returns the chosen version."""
        return [f"wikitext-{self.version}"]

    def examine(self, findings: Findings) -> Splits:
        """See `BaseDataset.examine`."""
        self.fetch()
        folder = Path(self.root) / f"wikitext-{self.version}"
        files = {split: folder / name for split, name in SPLITS.items()}
        missing = [str(path) for path in files.values() if not exists(path)]
        if missing:
            raise DataError(
                f"dataset=wikitext: there is no {', '.join(missing)}. Type dataset.download=true, or name the folder "
                f"that holds wikitext-{self.version} by dataset.root=FOLDER."
            )
        paths = {split: str(path) for split, path in files.items()}
        return PlainText.examine(self.model_copy(update=paths), findings)
