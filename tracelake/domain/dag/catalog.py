"""What a DAG may name: operators, runtimes, and the datasets that other DAGs publish. It is given, not looked up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from tracelake.domain.buffered import Declaration
from tracelake.domain.dag.model import DagOutput, RunDefaults, SourceKind, Storage
from tracelake.domain.text.validation_messages import invalid_fields


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """`path` leads into the config: keys and list indexes, empty for the config as a whole."""

    path: tuple[str | int, ...]
    reason: str
    suggestion: str | None = None
    code: str = "bad_config"
    within: str = "config"
    """The field of the job that it leads into, if it is another."""


ConfigCheck = Callable[[Mapping[str, Any]], Sequence[ConfigProblem]]


Columns = tuple[str, ...]
"""Names, in their order."""


@dataclass(frozen=True, slots=True)
class Wired:
    """What a job reads and writes, by the names that its DAG gives them."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    read: tuple[Declaration | None, ...] = ()
    """By input: what the dataset is declared to be, if this DAG declares it."""
    written: tuple[Declaration | None, ...] = ()
    """By output: the same; None is a dataset of the output's own."""
    alerts: frozenset[str] = frozenset()
    """The alerts that are defined in the organisation."""
    columns: tuple[Columns | None, ...] = ()
    """By input: the columns that it has; None, or left out: not known."""


WiringCheck = Callable[[Mapping[str, Any], Wired], Sequence[ConfigProblem]]
"""Called only with a config that passed its own check."""


@dataclass(frozen=True, slots=True, order=True)
class ColumnSource:
    """An output column is computed from this column of this input; `*` if the column is not known."""

    output: str
    input: str
    input_column: str
    index: int = 0
    """Of the output."""


ColumnLineage = Callable[[Mapping[str, Any], Wired], Sequence[ColumnSource]]

OutputColumns = Callable[[Mapping[str, Any], Wired], Sequence[Columns | None]]
"""By output; called only with a config that passed its own check. None: not known."""

OutputKeys = Callable[[Mapping[str, Any]], Sequence[Sequence[str]]]
"""By output; called only with a config that passed its own check."""

ConfigPath = tuple[str | int, ...]
"""Keys and list indexes that lead into a config."""

IgnoredSettings = Callable[[Mapping[str, Any], Sequence[DagOutput]], Mapping[ConfigPath, str]]
"""From the config and the job's outputs; called only with a config that passed its own check."""

Reproduces = Callable[[Mapping[str, Any], Sequence[str]], bool]
"""From the config and the names of all inputs; called only with what passed the other checks."""

ChangedFields = frozenset[str] | None
"""The columns of a dataset that can have other values, in small letters, in rows that are the same otherwise; None: any
columns, and rows."""
SAME: Final[ChangedFields] = frozenset()

ChangedColumns = Callable[[Mapping[str, Any], Mapping[str, Any], Mapping[str, ChangedFields]], Sequence[ChangedFields]]
"""By output, from the former and the new config, and what can change in each input; called only with configs that
passed all checks."""

ColumnsRead = Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Collection[str] | None]]
"""From the config and the names of all inputs, by input; None: any of its columns."""


@dataclass(frozen=True, slots=True)
class ListedAddresses:
    """A config that selects rows of its only input by a list of addresses: of these, those that are there count."""

    addresses: frozenset[bytes]
    rest: Mapping[str, Any]
    """The config without the list."""


AddressesRead = Callable[[Mapping[str, Any], Sequence[str]], ListedAddresses | None]
"""From the config and the names of all inputs; None: it does not."""

InputsRead = Callable[[Mapping[str, Any], Sequence[str]], Collection[str]]
"""From the config and the names of all inputs; called only with what passed the other checks."""


def files_of_tables(_config: Mapping[str, Any], outputs: Sequence[DagOutput]) -> Mapping[ConfigPath, str]:
    """For operators that write files and buffered datasets."""
    if any(output.storage is not Storage.BUFFERED for output in outputs):
        return {}
    return {("files",): " on a buffered dataset: its rows are published in batches, and the sink writes them"}


def every_input(_config: Mapping[str, Any], inputs: Sequence[str]) -> Collection[str]:
    return inputs


@dataclass(frozen=True, slots=True)
class Count:
    """From `least` to `most`; no upper end if None."""

    least: int
    most: int | None

    def allows(self, number: int) -> bool:
        return self.least <= number and (self.most is None or number <= self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"{self.least} or more"
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, slots=True)
class OperatorSpec:
    check_config: ConfigCheck
    runtimes: frozenset[str]
    source_kinds: frozenset[SourceKind] = frozenset()
    """The kinds of source it can be; empty if it only reacts."""
    forwards: bool = False
    """Whether it does no work as a source: what starts it is only an event for each output, and no task."""
    reactive: bool = True
    """Whether it can run on events of its inputs."""
    inputs: Count = Count(1, None)
    """When reactive; a source has none."""
    outputs: Count = Count(1, 1)
    storages: tuple[Storage, ...] = (Storage.PARQUET, Storage.BUFFERED)
    """What it can write to. The first that fits the update strategy is the default."""
    tuning: tuple[str, ...] = ()
    """Settings that say only how it works: with another value it makes the same rows, and no new generation."""
    canonical: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    """Its config as written in one way only: two configs that are equal then make the same rows."""
    runs_bundle: bool = False
    """Whether it runs a UDF bundle: then `udf` is required, else refused."""
    takes_secrets: bool = False
    """Whether it passes a job's `secrets` on: else they are refused."""
    ignores: IgnoredSettings | None = None
    """Settings that have no effect beside the others of this job, and why: each is a warning where it is given."""
    check_wiring: WiringCheck | None = None
    """Whether its config fits the names of its inputs and outputs."""
    reads: InputsRead | None = None
    """Of which inputs it reads the rows, from files or through the sink's tables: none of these may be a hot table."""
    narrows: InputsRead | None = None
    """Of which inputs it reads only the rows that their `where` keeps: on any other a `where` is refused."""
    output_columns: OutputColumns | None = None
    """The columns of its outputs, if its config determines them: queries downstream are checked against them."""
    output_keys: OutputKeys | None = None
    """The columns that identify a row of its outputs, if its config determines them: rows are compared by them."""
    makes_whole: Callable[[Mapping[str, Any]], bool] | None = None
    """Whether, with this config, each task makes all of the output anew: of several in a queue the newest is enough."""
    flushes: bool = False
    """Whether it collects updates until they are complete, and can send what it has before."""
    column_lineage: ColumnLineage | None = None
    """The input columns of each column of its outputs, if its config determines them."""
    changed_columns: ChangedColumns | None = None
    """Which columns of its outputs an edit, or a change of its inputs, can change. None: any, and rows."""
    columns_read: ColumnsRead | None = None
    """The only columns of its inputs that can decide what it writes, beside those of their `where`. None: any."""
    reproduces: Reproduces | None = None
    """Whether what a task writes to files is decided by this config and the rows of its scope, and it has no other
    effect: then files that a task wrote are used for another one that would read the same. None: never."""
    addresses: AddressesRead | None = None
    """A list of addresses in its config that only selects rows by the column `address` of its input. None: no list."""
    code: int = 1
    """The version of its code: raised by each change after which it writes other rows for the same config and rows."""


@dataclass(frozen=True, slots=True)
class RuntimeSpec:
    untrusted: bool = False
    """Runs code that is not ours: no secrets, no direct writes to Postgres."""
    missing: str | None = None
    """Why nothing can run there on this system; None: it can."""
    defaults: RunDefaults = field(default_factory=RunDefaults)
    in_process: bool = False
    """A task is one transaction of the Dispatcher: it has no lease and no heartbeat."""
    has_workers: bool = True
    """Workers wait for its tasks; elsewhere there is nothing to keep ready."""
    files_only: bool = False
    """Its tasks reach the object store and no database: inputs are made of files."""


@dataclass(frozen=True, slots=True)
class PublishedDataset:
    dag: str
    upstream: frozenset[str] = frozenset()
    """All published names that it is computed from, directly or not, to detect cycles across DAGs."""
    storage: Storage | None = None
    """None: not known."""
    columns: Columns | None = field(default=None, compare=False)
    """Those of the generation that is served; None: it has none yet."""


@dataclass(frozen=True, slots=True)
class Catalog:
    operators: Mapping[str, OperatorSpec]
    runtimes: Mapping[str, RuntimeSpec]
    published: Mapping[str, PublishedDataset] = field(default_factory=dict)
    """Names published in the org now, the DAG's own earlier version included."""
    declared: Mapping[tuple[str, str], Declaration] = field(default_factory=dict)
    """The current declarations of buffered datasets by DAG and name, with which a new one must be compatible."""
    alerts: frozenset[str] = frozenset()
    """The alerts that are defined in the organisation."""
    roles: frozenset[str] | None = None
    """The roles of the organisation, by which datasets are shared; None: not known."""
    deployed: bool = False
    """Whether the file was accepted before: what is refused only since then, and did no harm, is let through."""


def checked_by(model: type[BaseModel]) -> ConfigCheck:
    """A check that an operator's pydantic Config makes of itself."""

    def check(config: Mapping[str, Any]) -> Sequence[ConfigProblem]:
        try:
            model.model_validate(dict(config))
        except ValidationError as refusal:
            found = invalid_fields(refusal, model, config)
            return [ConfigProblem(field.path, field.reason, field.suggestion, field.code) for field in found]
        return []

    return check
