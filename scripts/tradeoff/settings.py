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
        Whether an embedding's gradients are sparse; such a setting is for tasks that have embeddings, and is
        held against `none-sparse`.
    only : {"", "energy", "coordinate"}
        The only kind of optimizer it is for.
    environment : mapping
        Variables that its ranks are started with.
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
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def reference(self) -> str:
        """The setting that this one is held against: the same gradients, uncompressed."""
        return SPARSE_REFERENCE if self.sparse else REFERENCE

    def options_for(self, importance: str) -> dict[str, Any]:
        """The codec's options for an optimizer that weighs errors so ("energy" or "coordinate")."""
        chosen = self.coordinate if importance == "coordinate" else None
        return dict(self.options if chosen is None else chosen)

    def recipe(self, importance: str) -> dict[str, Any]:
        """What of a setting decides a run's result."""
        more = {"environment": dict(self.environment)} if self.environment else {}
        return {"options": self.options_for(importance), **more}

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


def _deadzone(ratio: int, only: str = "", small: bool = False, **options: Any) -> Setting:
    asked = {"target_ratio": ratio, **options}
    normalized = {"domain": "normalized", **asked}  # of what Adam and its like divide by
    words = (*options, *(["small"] if small else []))
    environment = {"GRADFLOW_MIN_ELEMENTS": "1"} if small else {}
    return Setting(
        "-".join(("deadzone", str(ratio), *words)),
        "deadzone",
        OURS,
        "deadzone",
        asked,
        normalized,
        point=" ".join((f"{ratio}x", *words)),
        only=only,
        environment=environment,
    )


def _adaptive(ratio: int, only: str = "", **options: Any) -> Setting:
    name, asked = "-".join(("adaptive", str(ratio), *options)), {"target_ratio": ratio, **options}
    return Setting(name, "adaptive", OURS, "adaptive", asked, point=f"{ratio}x", only=only)


def _sparse(codec: str, **options: Any) -> Setting:
    name = "-".join((codec, *map(str, options.values()), "sparse"))
    return Setting(name, "sparse gradients", OURS, codec, options, point=name[:-7], sparse=True)


# Without those that teach little beside these: fp16 and int8 (which lose nothing), larger ranks.
SETTINGS = (
    _one("none"),
    Setting("horovod-fp16", "Horovod fp16", "horovod", "fp16"),
    *(
        Setting(f"ddp-powersgd-{r}", "DDP PowerSGD hook", "ddp", f"powersgd{r}", point=f"r{r}")
        for r in (1, 2)
    ),
    *map(_fixed, ("int4", "log4", "sign1")),
    *(
        Setting(f"topk-{percent}", "topk", OURS, "topk", {"ratio": percent / 100}, point=f"{percent}%")
        for percent in (1, 0.1)
    ),
    *(Setting(f"powersgd-{r}", "powersgd", OURS, "powersgd", {"rank": r}, point=f"r{r}") for r in (1, 2)),
    Setting(
        "deadzone-step",
        "deadzone",
        OURS,
        "deadzone",
        coordinate={"domain": "normalized", "step": 0.7},  # what docs/codecs.md recommends with Adam
        point="step 0.7",
        only="coordinate",
    ),
    _deadzone(17, only="coordinate", entropy=True, small=True),
    _deadzone(20, only="coordinate", entropy=True),
    _deadzone(42, only="coordinate", entropy=True, small=True),
    _deadzone(32),
    _deadzone(64),
    _deadzone(64, entropy=True),
    _deadzone(70, only="energy", entropy=True, small=True),
    _deadzone(128, entropy=True),
    Setting("wavelet-32", "wavelet", OURS, "wavelet", {"target_ratio": 32}, point="32x"),
    _adaptive(8),
    _adaptive(20, only="coordinate", entropy=True),
    _adaptive(40, only="coordinate", entropy=True),
    _adaptive(80, entropy=True),
    Setting("horovod-sparse", "Horovod, sparse", "horovod", "none", sparse=True),
    *map(_sparse, ("none", "int8", "log4")),
    _sparse("adaptive", target_ratio=8),
)
BY_KEY = {setting.key: setting for setting in SETTINGS}
# What everything else is held against; the latter where only a batch's rows of embeddings travel, which alone
# makes fewer bytes.
REFERENCES = REFERENCE, SPARSE_REFERENCE = "none", "none-sparse"
QUICK = ("ddp-powersgd-2", "log4", "deadzone-32", "wavelet-32", "adaptive-8")


def chosen(words: Iterable[str], importance: str, sparse: bool) -> Iterator[Setting]:
    """Yield the settings of these keys or families, in the table's order; their references always.

    `importance` is the optimizer's, `sparse` whether the task has embeddings.
    """
    wanted = set(words)
    fit = [s for s in SETTINGS if s.only in ("", importance) and (sparse or not s.sparse)]
    named = [s for s in fit if wanted & {s.key, s.family, s.codec}]
    keys = {REFERENCE, *(s.key for s in named), *(s.reference for s in named)}
    yield from (s for s in fit if s.key in keys)


def words() -> set[str]:
    """What :func:`chosen` knows."""
    return {word for s in SETTINGS for word in (s.key, s.family, s.codec)}
