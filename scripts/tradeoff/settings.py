"""The settings that are compared: one table, options included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hvd_gradflow.codec.policy import as_policy
from hvd_gradflow.errors import ConfigError

OURS = "gradflow"


@dataclass(frozen=True, eq=False)
class Setting:
    """One way to exchange gradients.

    Attributes
    ----------
    key : str
        What the command line and the results call it.
    family : str
        What the plot joins by a line.
    system : {"gradflow", "horovod", "ddp"}
        Who exchanges: this project, unmodified Horovod over MPI, torch's DistributedDataParallel over Gloo.
    codec : str
        Its name there.
    options : mapping
        Options of the codec.
    coordinate : mapping, optional
        Options in place of these where the optimizer divides each coordinate by its own size.
    point : str
        What tells it from the others of its family.
    sparse : bool
        Whether an embedding's gradients are sparse; such a setting is for tasks that have embeddings.
    only : {"", "energy", "coordinate"}
        The only kind of optimizer it is for.
    """

    key: str
    family: str
    system: str
    codec: str
    options: Mapping[str, Any] = field(default_factory=dict)
    coordinate: Mapping[str, Any] | None = None
    point: str = ""
    sparse: bool = False
    only: str = ""

    def options_for(self, importance: str) -> dict[str, Any]:
        """The codec's options for an optimizer that weighs errors so ("energy" or "coordinate")."""
        chosen = self.coordinate if importance == "coordinate" else None
        return dict(self.options if chosen is None else chosen)

    def missing(self, importance: str) -> str | None:
        """Why this build cannot run it, in a sentence, or None."""
        if self.system != OURS:
            return None
        try:
            as_policy(self.codec, **self.options_for(importance))
        except ConfigError as error:
            return str(error)
        return None


def _one(codec: str) -> Setting:
    return Setting(codec, codec, OURS, codec)


def _fixed(codec: str) -> Setting:
    return Setting(codec, "fixed width", OURS, codec, point=codec)


def _deadzone(ratio: int) -> Setting:
    asked = {"target_ratio": ratio}
    normalized = {"domain": "normalized", **asked}  # of what Adam and its like divide by
    return Setting(f"deadzone-{ratio}", "deadzone", OURS, "deadzone", asked, normalized, point=f"{ratio}x")


def _sparse(codec: str, **options: Any) -> Setting:
    name = "-".join((codec, *map(str, options.values()), "sparse"))
    return Setting(name, "sparse gradients", OURS, codec, options, point=name[:-7], sparse=True)


SETTINGS = (
    _one("none"),
    Setting("horovod-fp16", "Horovod fp16", "horovod", "fp16"),
    *(
        Setting(f"ddp-powersgd-{r}", "DDP PowerSGD hook", "ddp", f"powersgd{r}", point=f"r{r}")
        for r in (1, 2, 4)
    ),
    *map(_fixed, ("fp16", "int8", "int4")),
    _one("log4"),
    _one("sign1"),
    *(
        Setting(f"topk-{percent}", "topk", OURS, "topk", {"ratio": percent / 100}, point=f"{percent}%")
        for percent in (1, 0.1)
    ),
    *(Setting(f"powersgd-{r}", "powersgd", OURS, "powersgd", {"rank": r}, point=f"r{r}") for r in (1, 2, 4)),
    *map(_deadzone, (16, 32, 64, 128)),
    Setting(
        "deadzone-step",
        "deadzone",
        OURS,
        "deadzone",
        coordinate={"domain": "normalized", "step": 0.7},  # what docs/codecs.md recommends with Adam
        point="step 0.7",
        only="coordinate",
    ),
    _one("wavelet"),
    _one("adaptive"),
    Setting("adaptive-8", "adaptive", OURS, "adaptive", {"target_ratio": 8}, point="8x"),
    *map(_sparse, ("none", "fp16", "int8", "int4", "log4", "topk", "adaptive")),
    _sparse("adaptive", target_ratio=8),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
# What everything else is held against.
REFERENCE = "none"
QUICK = ("horovod-fp16", "ddp-powersgd-2", "log4", "deadzone-32", "adaptive-8")


def chosen(words: Iterable[str], importance: str, sparse: bool) -> Iterator[Setting]:
    """Yield the settings of these keys or families, in the table's order; the reference always.

    `importance` is the optimizer's, `sparse` whether the task has embeddings.
    """
    wanted = set(words)
    for setting in SETTINGS:
        fits = setting.only in ("", importance) and (sparse or not setting.sparse)
        if fits and (setting.key == REFERENCE or wanted & {setting.key, setting.family, setting.codec}):
            yield setting


def words() -> set[str]:
    """What :func:`chosen` knows."""
    return {word for s in SETTINGS for word in (s.key, s.family, s.codec)}
