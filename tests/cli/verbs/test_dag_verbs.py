"""`trace dag`: from a file that is wrong to a DAG that is deployed, active and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.systems.command_line import Trace
from tests.support.systems.gateway import DAG

pytestmark = pytest.mark.usefixtures("known_operators")


def test_a_valid_dag_is_said_to_be_valid_without_a_running_system(trace: Trace, file: Path) -> None:
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, output.err) == (0, "")
    assert "DAG shop is valid: 2 jobs" in output.out
    assert trace("dag", "validate", str(file), "--json", at_home=False).json["valid"] is True


def test_every_problem_of_a_dag_is_a_line_that_an_editor_can_jump_to(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("job: fetch}}", "job: fetchr}}").replace("runtime: dispatcher", "runtime: dispatchr"))
    output = trace("dag", "validate", str(file), at_home=False)
    assert (output.code, output.out) == (1, "")
    lines = output.err.splitlines()
    assert lines[0].startswith(f"{file}:2:21: defaults.runtime: there is no runtime 'dispatchr' (")
    assert any(
        line.startswith(f"{file}:9:") and "fetchr" in line and line.endswith("(did you mean fetch?)") for line in lines
    ), lines
    refused = trace("dag", "validate", str(file), "--json", at_home=False)
    assert refused.code == 1
    assert len(refused.json["error"]["problems"]) == len(lines)


def test_a_dataset_of_another_dag_is_left_to_the_running_system(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("{from: {job: fetch}}", "{from: {dataset: elsewhere}}"))
    output = trace("dag", "validate", str(file), at_home=False)
    assert output.code == 0
    assert "not checked, line 9" in output.out


@pytest.mark.usefixtures("running")
def test_a_dag_is_deployed_activated_listed_and_shown(trace: Trace, file: Path) -> None:
    assert "no DAG is deployed yet" in trace("dag", "list").out
    output = trace("dag", "deploy", str(file))
    assert "deployed (2 jobs)" in output.out
    version = trace("dag", "show", "shop", "--json").json["versions"][0]["dag_version_id"]
    assert f"trace dag activate shop {version}" in output.out
    assert "nothing changed" in trace("dag", "deploy", str(file)).out
    assert "is active" in trace("dag", "activate", "shop", version).out
    assert "was active already" in trace("dag", "activate", "shop", version).out
    assert version in trace("dag", "list").out
    assert "shop_orders" in trace("dag", "show", "shop").out
    assert trace("dag", "show", "shop", "--yaml").out == DAG
    assert trace("dag", "show", "nothing").code == 1
    names = [item["name"] for item in trace("dataset", "list", "--json").json["datasets"]]
    assert names == ["shop_clean", "shop_orders"]
    assert "none yet" in trace("dataset", "show", "shop_clean").out


@pytest.mark.usefixtures("running")
def test_what_the_running_system_refuses_in_a_dag_is_printed_line_by_line(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("{from: {job: fetch}}", "{from: {dataset: elsewhere}}"))
    output = trace("dag", "deploy", str(file))
    assert (output.code, output.out) == (1, "")
    assert output.err.startswith(f"{file}:9:")
    assert "elsewhere" in output.err
    file.write_text("jobs: []\n")
    assert "`name` is required" in trace("dag", "deploy", str(file)).err


@pytest.mark.usefixtures("running")
def test_a_field_without_effect_is_a_warning_in_validate_and_in_deploy(trace: Trace, file: Path) -> None:
    file.write_text(DAG.replace("    runtime: ecs_platform\n", "    runtime: ecs_platform\n    replay: true\n"))
    line = f"{file}:11:5: warning: jobs[1].replay: `replay` has no effect"
    for verb in ("validate", "deploy", "deploy"):
        output = trace("dag", verb, str(file), at_home=verb != "validate")
        assert (output.code, output.err.startswith(line)) == (0, True), output.err
    (warning,) = trace("dag", "validate", str(file), "--json", at_home=False).json["warnings"]
    assert (warning["field"], warning["code"]) == ("jobs[1].replay", "no_effect")
    assert trace("dag", "deploy", str(file), "--json").json["deployed"]["warnings"] == [warning]
    file.write_text(file.read_text().replace("job: fetch}}", "job: fetchr}}"))
    for verb in ("validate", "deploy"):
        output = trace("dag", verb, str(file), at_home=verb != "validate")
        assert (output.code, line in output.err, "fetchr" in output.err) == (1, True, True), output.err


@pytest.mark.parametrize("verb", ["validate", "deploy"])
def test_a_missing_folder_does_not_suppress_other_errors(trace: Trace, file: Path, verb: str) -> None:
    """Without a running system too: nothing is pushed of a DAG that cannot be deployed."""
    wrong = DAG.replace("runtime: dispatcher", "runtime: dispatchr").replace("job: clean}", "job: cleaner}")
    inputs = "inputs: [{from: {job: %s}}]"
    own = f"  - {{name: own, operator: udf, runtime: lambda, udf: {{folder: nowhere}}, {inputs % 'clean'}}}\n"
    config = "config: {abi_file: no.json, events: [swap]}"
    seen = f"  - {{name: seen, operator: evm_decode, {config}, {inputs % 'x'}}}\n"
    file.write_text(wrong.replace("publish:\n", own + seen + "publish:\n"))
    output = trace("dag", verb, str(file), at_home=verb == "deploy")
    lines = output.err.splitlines()
    assert (output.code, len(lines)) == (1, 5), output.err
    found = {2: "dispatchr", 11: "no such folder", 12: "no.json", 15: "cleaner"}
    for number, words in (*found.items(), (12, "no job 'x'")):
        assert any(line.startswith(f"{file}:{number}:") and words in line for line in lines), (number, words, lines)
    assert trace("dag", verb, str(file), "--json", at_home=verb == "deploy").json["error"]["problems"]


@pytest.mark.usefixtures("running")
def test_an_abi_file_is_deployed_with_its_dag_and_a_bad_one_is_refused_at_its_line(trace: Trace, file: Path) -> None:
    config = "    config: {events: [swap], abi_file: swaps.json}\n"
    file.write_text(DAG.replace("    operator: work\n", "    operator: evm_decode\n" + config))
    abi = file.with_name("swaps.json")
    abi.write_text('[{"type": "event", "name": "Swap", "inputs": []}, {"type": "function", "name": "swap"}]')
    assert trace("dag", "validate", str(file), at_home=False).code == 0
    assert trace("dag", "deploy", str(file)).code == 0
    assert 'abi: \'[{"type":"event","name":"Swap","inputs":[]}]\'' in trace("dag", "show", "shop", "--yaml").out
    for wrong, reason in {
        "[" * 5_000: "this is not JSON",
        '[{"type": "event", "name": "Swap", "inputs": [{"type": "uint' + "9" * 5_000 + '"}]}]': "there is no type",
    }.items():
        abi.write_text(wrong)
        for verb in ("validate", "deploy"):
            output = trace("dag", verb, str(file), at_home=verb == "deploy")
            assert (output.code, output.out) == (1, "")
            assert output.err.startswith(f"{file}:9:")
            assert reason in output.err
    abi.write_text("[]")
    output = trace("dag", "deploy", str(file))
    assert output.err.startswith(f"{file}:9:")
    assert "the ABI has no event 'swap'" in output.err


@pytest.mark.usefixtures("running")
def test_a_dag_is_deleted_after_it_was_deactivated_and_the_user_agreed(trace: Trace, file: Path) -> None:
    assert trace("dag", "deploy", str(file), "--activate").code == 0
    refused = trace("dag", "delete", "shop", "--yes")
    assert (refused.code, "`trace dag deactivate shop`" in refused.err) == (1, True)
    assert trace("dag", "deactivate", "shop", "--yes").code == 0
    asked = trace("dag", "delete", "shop")
    assert (asked.code, "This deletes DAG shop: 1 versions" in asked.err) == (1, True), asked.err
    deleted = trace("dag", "delete", "shop", "--yes", "--json").json
    assert (deleted["changed"], deleted["versions"]) == (True, 1)
    assert trace("dag", "delete", "shop", "--yes").out == "it was deleted before\n"
    assert trace("dag", "list", "--json").json["dags"] == []
