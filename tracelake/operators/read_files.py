"""`read_files`: reads CSV, JSON or Parquet files of a folder into a dataset: a partition for each file, or one for all.

The folder is below the one in the worker's settings, and nothing outside of that is ever read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from tracelake.data.files.shape import TYPES
from tracelake.domain.dag.catalog import Columns, ConfigPath, OperatorSpec, Wired, checked_by
from tracelake.domain.dag.model import FIRED, DagOutput, Storage
from tracelake.domain.event import LabelScope
from tracelake.domain.ranges import MAX_END, Range, is_partition_key
from tracelake.errors import InvalidRequest, WorkFailed
from tracelake.operators.api.context import TaskContext
from tracelake.operators.api.inputs import WHOLE
from tracelake.operators.api.outcome import OperatorConfig, Outcome
from tracelake.operators.api.outputs import Output
from tracelake.operators.api.runtimes import ON_WORKERS

if TYPE_CHECKING:
    import pyarrow as pa

    from tracelake.data.files.shape import Shape

MAX_FILES: Final = 10_000
LABEL: Final = re.compile(r"[^A-Za-z0-9._=+-]")


class Config(OperatorConfig):
    path: str = Field(min_length=1)
    format: Literal["csv", "json", "parquet"]
    pattern: str | None = None
    columns: Annotated[list[str], Field(min_length=1)] | None = None
    optional: list[str] = Field(default_factory=list)
    partition: Literal["file", "whole"] = "file"
    header: bool = True
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    bad_lines: int = Field(default=0, ge=0, le=MAX_END)

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if path.startswith("/") or "\\" in path or "\x00" in path or ".." in parts:
            raise ValueError(
                "a path goes down from the workers' folder of files: no '/' at its start, no '..' and no '\\'"
            )
        return path

    @field_validator("columns")
    @classmethod
    def _are_types(cls, columns: list[str] | None) -> list[str] | None:
        names = set()
        for column in columns or ():
            name, _, kind = column.partition(" ")
            if not name or TYPES.fullmatch(kind.strip()) is None:
                raise ValueError(f"{column!r} is not a name and a type, such as 'id bigint' or 'price decimal(10,2)'")
            if name in names:
                raise ValueError(f"two columns are called {name!r}")
            names.add(name)
        return columns

    @model_validator(mode="after")
    def _knows_the_optional_ones(self) -> Self:
        unknown = [name for name in self.optional if name not in self.types]
        if unknown:
            raise ValueError(f"`optional` names {', '.join(unknown)}, which `columns` does not")
        return self

    @property
    def types(self) -> dict[str, str]:
        """A list, since a mapping would lose its order in the database."""
        split = [column.partition(" ") for column in self.columns or ()]
        return {name: kind.strip() for name, _, kind in split}


def output_columns(config: Mapping[str, Any], _wired: Wired) -> Sequence[Columns | None]:
    """The columns of the config; without them they are inferred from the files."""
    return [tuple(Config.model_validate(dict(config)).types) or None]


def ignored_settings(config: Mapping[str, Any], _outputs: Sequence[DagOutput]) -> Mapping[ConfigPath, str]:
    form = config["format"]
    return {} if form == "csv" else dict.fromkeys((("header",), ("delimiter",)), f" with format: {form}; it is for csv")


SPEC = OperatorSpec(
    checked_by(Config),
    frozenset({ON_WORKERS}),
    source_kinds=FIRED,
    storages=(Storage.PARQUET,),
    ignores=ignored_settings,
    output_columns=output_columns,
)


def run(ctx: TaskContext[Config]) -> Outcome | None:
    from tracelake.data.files.parquet_writer import write_ranges

    (output,) = ctx.outputs
    files = _files(ctx)
    fetch = _Fetch(
        tuple(file for _, file in files), tuple(_said(ctx, file) for _, file in files), _shape(ctx, output, files)
    )
    numbers = [Range(number, number + 1) for number in range(len(files))]
    written = write_ranges(ctx.spark, fetch, numbers, {"rows": output.place}, {"rows": output.stem})
    if ctx.config.partition == "whole":
        output.stage(WHOLE, [item for _, item in written])
    else:
        for _, item in sorted(written, key=lambda element: element[1].part):
            output.stage(files[item.part][0], [item])
    left_out = sum(json.loads(item.meta)["left_out"] for _, item in written)
    if left_out:
        ctx.progress(len(files), len(files), f"{left_out} lines did not fit and were left out")
    return None


@dataclass(frozen=True)
class _Fetch:
    """Reads a file by its number; sent to the executors."""

    paths: tuple[Path, ...]
    names: tuple[str, ...]
    shape: Shape

    def __call__(self, number: Range) -> tuple[Mapping[str, pa.Table], str]:
        from tracelake.data.files.text_files import read_table

        table, left_out = read_table(self.paths[number.start], self.names[number.start], self.shape)
        return {"rows": table}, json.dumps({"left_out": left_out})


def _shape(ctx: TaskContext[Config], output: Output, files: Sequence[tuple[str, Path]]) -> Shape:
    """Return the columns of the config, else of the dataset, else those inferred from the first file."""
    from tracelake.data.files.shape import Shape
    from tracelake.data.files.text_files import infer_columns

    config = ctx.config
    bare = Shape(config.format, config.types, config.header, config.delimiter, config.bad_lines, tuple(config.optional))
    if config.columns:
        return bare
    known = ctx.api.files(output.ref.dataset_uuid, None).columns
    columns = (
        {str(item["name"]): str(item["type"]) for item in known}
        if known
        else infer_columns(files[0][1], _said(ctx, files[0][1]), bare)
    )
    return replace(bare, columns=columns)


def _files(ctx: TaskContext[Config]) -> list[tuple[str, Path]]:
    """Return the files with the labels of their partitions, in the order of their names."""
    root = _root(ctx)
    place = _inside(root / ctx.config.path, root)
    paths = _listed(place, root) if place.is_dir() else [place]
    pattern = ctx.config.pattern or ("*" if place.is_file() else f"*.{ctx.config.format}*")
    files = [_inside(item, root) for item in paths if fnmatchcase(item.name, pattern) and not item.name.startswith(".")]
    labelled = _labelled([item for item in files if item.is_file()], ctx.config.partition)
    if isinstance(ctx.scope, LabelScope) and ctx.config.partition == "file":
        labelled = [(label, file) for label, file in labelled if label == ctx.scope.label] or labelled
    if not labelled:
        found = "is a file whose name does not match" if place.is_file() else "holds no file that matches"
        raise WorkFailed(f"{ctx.config.path} {found} {pattern}", where="/config/path", hint="check `pattern`")
    if len(labelled) > MAX_FILES:
        raise WorkFailed(f"{len(labelled)} files at once; at most {MAX_FILES}", where="/config/path")
    return labelled


def _root(ctx: TaskContext[Config]) -> Path:
    if ctx.resources.folder is None:
        raise InvalidRequest(
            "this worker reads no files: its setting worker.files_folder is not set"
            " (TRACE_WORKER__FILES_FOLDER, the folder of these files)",
            where="worker.files_folder",
            hint="set it and start the worker again, then `trace task retry`",
        )
    return ctx.resources.folder.resolve()


def _inside(path: Path, root: Path) -> Path:
    """Return the file with links resolved, if it is in the folder."""
    try:
        paths = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise WorkFailed(f"there is no {_in_words(path, root)} in the folder of files", where="/config/path") from None
    if not paths.is_relative_to(root):
        raise WorkFailed(
            f"{_in_words(path, root)} leads out of the folder of files", where="/config/path", hint="copy it there"
        )
    return paths


def _listed(folder: Path, root: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as wrong:
        raise WorkFailed(
            f"{_in_words(folder, root)} cannot be listed: {wrong.strerror}",
            where="/config/path",
            hint="give the worker's user the right to read it",
        ) from None


def _labelled(files: Sequence[Path], partition: str) -> list[tuple[str, Path]]:
    """Labels name partitions only if each file is one."""
    if partition == "whole":
        return [(label_of(file.name), file) for file in files]
    labels: dict[str, Path] = {}
    for file in files:
        label = label_of(file.name)
        if label in labels:
            raise WorkFailed(
                f"{_in_words(file)} and {_in_words(labels[label])} would be one partition, {label}",
                where="/config/path",
                hint="a label is a name up to its first dot: rename one (sales_2024.csv),"
                " narrow `pattern`, or set `partition: whole`",
            )
        labels[label] = file
    return list(labels.items())


def label_of(name: str) -> str:
    """Return a file's name up to its first dot as a label. `1-9` would be a range: it becomes `file_1-9`."""
    label = LABEL.sub("_", name.partition(".")[0])[:190] or "_"
    return f"file_{label}" if is_partition_key(label) or label == WHOLE else label


def _said(ctx: TaskContext[Config], file: Path) -> str:
    return _in_words(file, _root(ctx))


def _in_words(path: Path, root: Path | None = None) -> str:
    """Return the path below the root. File names are bytes, and need not be valid text."""
    return os.fsencode(path.relative_to(root or path.parent)).decode(errors="replace")
