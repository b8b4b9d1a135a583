"""`python`: calls a function of an installed module with DataFrames, and stores those it returns. Trusted code only."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field, field_validator

from tracelake.domain.dag.catalog import Count, OperatorSpec, checked_by, every_input, files_of_tables
from tracelake.domain.dag.model import FIRED, Storage
from tracelake.domain.ranges import Range
from tracelake.errors import WorkFailed
from tracelake.operators.api.context import Secrets, TaskContext
from tracelake.operators.api.inputs import WHOLE
from tracelake.operators.api.outcome import OperatorConfig, Outcome, in_full
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.runtimes import ON_SPARK
from tracelake.operators.helpers.declared_lineage import check_lineage, declared_lineage
from tracelake.wire.task.lifecycle import FireRef

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class Config(OperatorConfig):
    function: str
    args: Mapping[str, Any] = Field(default_factory=dict)
    mode: Literal["partition", "full"] = "partition"
    files: int = Field(default=1, ge=1, le=1000)
    lineage: Mapping[str, list[str]] = Field(default_factory=dict)

    @field_validator("function")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        """Check only the format: the Dispatcher never imports user modules."""
        if FUNCTION.fullmatch(name) is None:
            raise ValueError("a function is named by its module and its name, such as my_package.module:function")
        return name


SPEC = OperatorSpec(
    checked_by(Config),
    ON_SPARK,
    source_kinds=FIRED,
    outputs=Count(1, None),
    storages=(Storage.PARQUET, Storage.BUFFERED),
    ignores=files_of_tables,
    reads=every_input,
    narrows=every_input,
    takes_secrets=True,
    makes_whole=in_full,
    tuning=("lineage",),
    check_wiring=check_lineage,
    column_lineage=declared_lineage,
)


@dataclass(frozen=True)
class Call:
    """The second argument of the function."""

    spark: SparkSession
    partition: Range | str
    """What it makes: a range, a label, or `all`."""
    args: Mapping[str, Any]
    outputs: tuple[str, ...]
    progress: Callable[[int, int | None, str], None]
    secrets: Secrets
    """The secrets that the job names, by name."""
    fired: FireRef | None = None
    """Of a source: what fired it, with `kind`, the `slot` of a schedule, or the `body` of a webhook."""

    @property
    def range(self) -> tuple[int, int] | None:
        """First and last number, both included; None where the partition is not a range."""
        return self.partition.edges if isinstance(self.partition, Range) else None


def run(ctx: TaskContext[Config]) -> Outcome | None:
    from tracelake.spark.failures import spark_failures

    function = _load(ctx.config.function)
    parts = (WHOLE,) if ctx.config.mode == "full" else ctx.parts(ctx.first_in_files)
    for part in parts:
        frames = _Frames(ctx, part)
        call = Call(
            ctx.spark,
            part,
            MappingProxyType(dict(ctx.config.args)),
            tuple(output.stem for output in ctx.outputs),
            ctx.progress,
            ctx.secrets,
            ctx.fired,
        )
        with spark_failures("/config/function"):
            for output, frame in _by_output(ctx, function(frames, call)):
                output.write(frame, part, files=ctx.config.files)
    return None


class _Frames(Mapping[str, "DataFrame"]):
    """DataFrames by input name, each created on access: an input may be used only for its updates."""

    def __init__(self, ctx: TaskContext[Config], part: Range | str) -> None:
        self._full = ctx.config.mode == "full"
        self._part = part
        self._inputs = {source.name: source for source in ctx.inputs}

    def __getitem__(self, name: str) -> DataFrame:
        return self._inputs[name].rows_for(self._part, full=self._full)

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)


def _load(name: str) -> Callable[[Mapping[str, DataFrame], Call], Any]:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function, None)
    except Exception as wrong:
        raise WorkFailed(
            f"module {module} cannot be imported on this worker: {type(wrong).__name__}: {wrong}",
            where="/config/function",
            hint="install it where the workers run, and start them again",
        ) from wrong
    if not callable(found):
        raise WorkFailed(f"module {module} has no function {function}", where="/config/function")
    return found  # type: ignore[no-any-return]


def _by_output(ctx: TaskContext[Config], returned: Any) -> Sequence[tuple[Output, DataFrame]]:
    """Match frames to outputs: one frame for the only output; several in the order of the DAG, or by published name."""
    by_stem = {output.stem: output for output in ctx.outputs}
    frames_by_name = returned if isinstance(returned, Mapping) else dict(_in_order(returned, list(by_stem)))
    if set(frames_by_name) != set(by_stem):
        raise WorkFailed(
            f"the function returned {', '.join(sorted(map(str, frames_by_name))) or 'nothing'};"
            f" the outputs are {', '.join(sorted(by_stem))}",
            where="/config/function",
            hint="return one DataFrame for each output, in their order or by these names: as they are published, else"
            " by job and place",
        )
    for name, frame in frames_by_name.items():
        if not hasattr(frame, "mapInArrow"):
            raise WorkFailed(f"the function returned {type(frame).__name__} for {name}, not a DataFrame")
    return [(by_stem[name], frame) for name, frame in frames_by_name.items()]


def _in_order(returned: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    frames = list(returned) if isinstance(returned, list | tuple) else [returned]
    for number, frame in enumerate(frames):
        yield names[number] if number < len(names) else f"one more (number {number + 1})", frame
