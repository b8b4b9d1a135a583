"""A contract for import-linter: every folder of the package may import the folders that are listed for it, no others.

`pyproject.toml` has the list, a line for each folder: `"sink: data domain errors"`. A folder without a line is an
error, and so is an entry that no import uses, so that the list stays what the code needs.
"""

from __future__ import annotations

from collections import defaultdict

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowedImports(Contract):
    package = fields.StringField()
    folders = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:  # noqa: ARG002 - import-linter's own
        allowed = {name: set(others.split()) for name, _, others in (line.partition(":") for line in self._lines())}
        wrong, used = [], defaultdict(set)
        for importer, imported in self._imports(graph):
            here, there = _folder(importer), _folder(imported)
            if here == there:
                continue
            used[here].add(there)
            if there not in allowed.get(here, ()):
                wrong.append(f"{importer} imports {imported}, but {here} may not import {there}")
        wrong += [
            f"{here} may import {there}, but does not: delete it from the list"
            for here, others in allowed.items()
            for there in sorted(others - used[here])
        ]
        return ContractCheck(kept=not wrong, metadata={"wrong": sorted(wrong)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for line in check.metadata["wrong"]:
            output.print_error(line, bold=False)

    def _lines(self) -> list[str]:
        return list(self.folders)  # type: ignore[call-overload,no-any-return] # a field is its value at run time

    def _imports(self, graph: ImportGraph) -> list[tuple[str, str]]:
        return [
            (importer, imported)
            for importer in graph.modules
            if importer.startswith(f"{self.package}.")
            for imported in graph.find_modules_directly_imported_by(importer)
            if imported.startswith(f"{self.package}.")
        ]


def _folder(module: str) -> str:
    return module.split(".")[1]
