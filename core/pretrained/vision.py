"""Vision-language models: pictures in a prompt as ids beyond the vocabulary.

A prompt stays a row of integers. Each place that a picture takes in it has an id of its own, from
`FIRST_IMAGE_ID` on, given when the picture is first shown; equal pictures have equal ids. The
model's token embedding is exchanged for one that looks these ids up among the features which the
model's own vision tower makes of the pictures. Whoever compares, shares, packs or scores prompts
by their ids is therefore right about pictures as well, and gradients reach the vision tower.
"""

from __future__ import annotations

import shutil
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoProcessor, PreTrainedModel

from echoscope.store.records import IntArray, PromptImage
from echoscope.text.png import open_picture, picture_key

from ..config.loading import ConfigError
from ..policy_assets import config_of

FIRST_IMAGE_ID = 1 << 24
"""No vocabulary is so large."""
MODEL_TYPES = ("idefics3", "smolvlm")
"""Models whose pictures take places like any token's: one position each, seen causally. Others
(Qwen2-VL's positions have three axes, Gemma 3's pictures see themselves both ways) differ there."""
MAX_PICTURES = 65_536
"""Pictures that are remembered; the one not shown for longest is forgotten first."""
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json", "chat_template.jinja")

_MARK = "\ue000text\ue001"
_MAX_PIXEL_SETS = 64
_END = np.iinfo(np.int32).max


def model_type_with_vision(folder: str) -> str | None:
    """The type of a model in a folder on this disk that has a vision tower; None for others."""
    config = config_of(Path(folder))
    return str(config.get("model_type")) if "vision_config" in config else None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Picture:
    start: int
    """The id of its first place."""
    content: tuple[int, ...]
    """All ids that stand for it in a prompt: its places, and the tokens that frame them."""
    png: bytes


class ImageTokens:
    """The pictures that a process has shown to a model, and their ids. Several threads may use it.

    Args:
        processor: of `transformers`, for text and pictures.
        image_token_id: what the model's vocabulary has in the place of a picture.

    Raises:
        ConfigError: the processor does not put that token where a picture is.
    """

    def __init__(self, processor: Any, image_token_id: int) -> None:
        self._processor = processor
        self.token_id = image_token_id
        self._word = _image_word(processor)
        self._known: OrderedDict[str, _Picture] = OrderedDict()
        self._keys: list[str] = []
        self._starts: list[int] = []
        self._next = FIRST_IMAGE_ID
        self._pixels: OrderedDict[str, dict[str, Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: object) -> ImageTokens:
        return self  # a copy of a model sees the pictures that are shown later, too

    def content(self, png: bytes) -> tuple[int, ...]:
        """The ids that stand for a picture in a prompt.

        Raises:
            PictureError: the bytes are no picture.
        """
        key = picture_key(png)
        with self._lock:
            picture = self._known.get(key)
            if picture is None:
                picture = self._add(key, png)
            self._known.move_to_end(key)
            return picture.content

    def _add(self, key: str, png: bytes) -> _Picture:
        ids, pixels = self._processed(png)
        numbers = iter(range(self._next, _END))
        content = tuple(next(numbers) if token == self.token_id else token for token in ids)
        picture = _Picture(start=self._next, content=content, png=png)
        self._next += ids.count(self.token_id)
        self._keys.append(key)
        self._starts.append(picture.start)
        self._known[key] = picture
        self._keep_pixels(key, pixels)
        if len(self._known) > MAX_PICTURES:
            self._known.popitem(last=False)
        return picture

    def _processed(self, png: bytes) -> tuple[list[int], dict[str, Tensor]]:
        with torch.inference_mode(False):  # or the update could not use what sampling has made
            made = self._processor(
                text=[self._word],
                images=[[open_picture(png)]],
                add_special_tokens=False,
                return_tensors="pt",
            )
        ids = made.pop("input_ids")[0].tolist()
        made.pop("attention_mask", None)
        if self.token_id not in ids:
            raise ConfigError(
                f"the model's processor writes a picture as {self._word!r}, which has no image "
                f"token (id {self.token_id}): processor_config.json belongs to another model"
            )
        return ids, dict(made)

    def shown_in(self, tokens: IntArray) -> tuple[PromptImage, ...]:
        """The pictures of a prompt, in order: one entry for each run of a picture's places."""
        places = np.flatnonzero(tokens >= FIRST_IMAGE_ID)
        if not len(places):
            return ()
        pictures = np.array([self._index(int(token)) for token in tokens[places]])
        ends_run = (np.diff(places) != 1) | (np.diff(pictures) != 0)
        runs = np.split(np.arange(len(places)), np.flatnonzero(ends_run) + 1)
        return tuple(
            PromptImage(
                key=self._keys[pictures[run[0]]],
                span=(int(places[run[0]]), int(places[run[-1]]) + 1),
                token_id=self.token_id,
            )
            for run in runs
        )

    def knows(self, tokens: IntArray) -> bool:
        """Whether every id is a place of a picture that was shown."""
        return not len(tokens) or FIRST_IMAGE_ID <= tokens.min() <= tokens.max() < self._next

    def _index(self, token: int) -> int:
        return bisect_right(self._starts, token) - 1

    def features(self, trunk: Any, ids: Tensor) -> Tensor:
        """What the vision tower says at these places, (number of ids, hidden)."""
        flat: NDArray[np.int64] = ids.cpu().numpy()
        pictures = np.array([self._index(token) for token in flat.tolist()])
        different, order = np.unique(pictures, return_inverse=True)
        keys = [self._keys[picture] for picture in different]
        rows, sizes = zip(*self._seen(trunk, keys), strict=True)
        ends = np.cumsum((0, *sizes))[:-1]
        starts = np.array([self._starts[picture] for picture in different])
        places = ends[order] + flat - starts[order]
        return torch.cat(rows)[torch.from_numpy(places).to(ids.device)]

    def _seen(self, trunk: Any, keys: list[str]) -> Iterator[tuple[Tensor, int]]:
        """The places of each picture, (its places, hidden), and their number.

        Pictures go through the tower one by one: what it says of one then does not depend, not
        even by rounding, on the others of the pass.
        """
        device = next(trunk.parameters()).device
        for key in keys:
            with self._lock:
                picture = self._picture(key)
                pixels = {k: v.to(device) for k, v in self._pixels_of(key, picture).items()}
            size = sum(token >= FIRST_IMAGE_ID for token in picture.content)
            seen = trunk.get_image_features(**pixels, return_dict=True).pooler_output
            rows = torch.cat(list(seen)) if isinstance(seen, list | tuple) else seen.flatten(0, -2)
            if len(rows) != size:
                raise ConfigError(
                    f"the model makes {len(rows)} vectors of a picture for which its processor "
                    f"writes {size} tokens: processor_config.json belongs to another model"
                )
            yield rows, size

    def _picture(self, key: str) -> _Picture:
        picture = self._known.get(key)
        if picture is None:
            raise RuntimeError(
                f"the picture {key} was forgotten: a step may show at most {MAX_PICTURES} "
                "different pictures"
            )
        return picture

    def _pixels_of(self, key: str, picture: _Picture) -> dict[str, Tensor]:
        pixels = self._pixels.get(key)
        if pixels is None:
            _, pixels = self._processed(picture.png)
        self._keep_pixels(key, pixels)
        return pixels

    def _keep_pixels(self, key: str, pixels: dict[str, Tensor]) -> None:
        self._pixels[key] = pixels
        self._pixels.move_to_end(key)
        if len(self._pixels) > _MAX_PIXEL_SETS:
            self._pixels.popitem(last=False)


class ImageEmbedding(nn.Embedding):
    """A model's token embedding that knows the ids of pictures as well.

    It has the weight, and so the state, of the embedding whose place it takes.
    """

    def __init__(self, embedding: nn.Embedding, trunk: nn.Module, images: ImageTokens) -> None:
        super().__init__(
            embedding.num_embeddings,
            embedding.embedding_dim,
            padding_idx=embedding.padding_idx,
            device="meta",
        )
        self.weight = embedding.weight
        self.images = images
        self._trunk = (trunk,)  # in a tuple: the trunk holds this module, not the other way round

    def forward(self, ids: Tensor) -> Tensor:
        is_image = ids >= FIRST_IMAGE_ID
        if not bool(is_image.any()):
            return super().forward(ids)
        text = super().forward(ids.masked_fill(is_image, 0))
        seen = self.images.features(self._trunk[0], ids[is_image])
        return text.masked_scatter(is_image.unsqueeze(-1), seen.to(text.dtype))


def show_images(model: PreTrainedModel, images: ImageTokens) -> None:
    """Let a vision-language model, or the trunk of one, read the ids of pictures.

    Raises:
        ConfigError: the model has no vision tower that this package knows.
    """
    trunk = model.base_model
    if trunk.config.model_type not in MODEL_TYPES:
        raise ConfigError(
            f"context.images shows pictures, but {type(model).__name__} cannot read them: use a "
            f"model of the type {' or '.join(MODEL_TYPES)}, or set context.images=none"
        )
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, ImageEmbedding):
        model.set_input_embeddings(ImageEmbedding(embedding, trunk, images))


def load_images(folder: str) -> ImageTokens:
    """The ids of pictures for the model in a folder, with its own processor.

    Raises:
        ConfigError: the model has no vision tower that this package knows, or no usable processor.
    """
    kind = model_type_with_vision(folder)
    if kind not in MODEL_TYPES:
        what = "has no vision tower" if kind is None else f"is of the type {kind}"
        raise ConfigError(
            f"context.images shows pictures, but the model {folder!r} {what}: use a model of the "
            f"type {' or '.join(MODEL_TYPES)}, or set context.images=none"
        )
    try:
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
        token_id = int(config_of(Path(folder))["image_token_id"])
    except (OSError, ValueError, KeyError, TypeError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"context.images needs the processor of {folder!r}, which cannot be loaded: {reason}"
        ) from None
    if not hasattr(processor, "image_processor"):
        raise ConfigError(
            f"context.images needs the processor of {folder!r}, which has none for pictures: copy "
            "processor_config.json or preprocessor_config.json from the model that it was made from"
        )
    return ImageTokens(processor, token_id)


def copy_processor(source: str, target: Path) -> None:
    """Copy what makes tokens of pictures, where a model has it: its weights are no use without."""
    for name in PROCESSOR_FILES:
        file = Path(source) / name
        if file.is_file() and not (target / name).exists() and model_type_with_vision(source):
            shutil.copyfile(file, target / name)


def _image_word(processor: Any) -> str:
    """What the chat template writes for a picture, before its processor makes tokens of it."""
    token = str(processor.image_token)
    text = {"type": "text", "text": _MARK}
    try:
        before, plain = (
            str(
                processor.apply_chat_template(
                    [{"role": "user", "content": content}], tokenize=False
                )
            ).split(_MARK)[0]
            for content in ([{"type": "image"}, text], [text])
        )
    except Exception:  # noqa: BLE001 - a template of somebody else's; the token alone will do
        return token
    pairs = zip(before, plain, strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    word = before[shared:].strip()
    return word if token in word else token
