"""A runtime with an environment of its own: its Python, its variables, its engine's arguments."""

import sys
from pathlib import Path

import pytest
from rich.console import Console

from dcr.errors import ConfigError
from dcr_recipes.compose import compose, load, save
from dcr_recipes.config import RunConfig
from dcr_recipes.launch.driver import run, specs
from dcr_recipes.launch.lanes import _missing, check_lanes, interpreter
from dcr_recipes.layout import RunFolder
from dcr_recipes.runtime.arguments import OWNED, engine_arguments, environment


def _vllm(*words: str) -> RunConfig:
    return compose(["model=tiny", "runtime=vllm", *words])


def test_serving_processes_run_in_the_lane_and_the_others_here(tmp_path: Path) -> None:
    lane = tmp_path / "python"
    config = _vllm(f"runtime.interpreter={lane}")
    made = {spec.name: spec for spec in specs(RunFolder(tmp_path), config)}
    assert {name for name, spec in made.items() if spec.argv[0] == str(lane)} == {
        "oracle", "runtime-0", "runtime-1",
    }  # fmt: skip
    assert {made[name].argv[0] for name in ("coordinator", "owner-0", "owner-1")} == {sys.executable}
    assert made["runtime-0"].env.items() >= environment(config.runtime).items()
    assert not made["owner-0"].env.keys() & environment(config.runtime).keys()
    here = specs(RunFolder(tmp_path), compose(["model=tiny"]))
    assert {spec.argv[0] for spec in here} == {sys.executable}


def test_the_lanes_python_lies_beside_this_environment_unless_one_is_named() -> None:
    assert interpreter(_vllm().runtime) == Path(sys.prefix).parent / ".venv-vllm/bin/python"
    assert (
        interpreter(_vllm("runtime.interpreter=env/bin/python").runtime) == Path("env/bin/python").absolute()
    )
    assert interpreter(compose([]).runtime) == Path(sys.executable)


def test_a_missing_lane_is_noticed_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / ".venv"))
    with pytest.raises(ConfigError, match=r"install it with: make setup-vllm"):
        run(["model=tiny", "runtime=vllm", f"run_dir={tmp_path / 'run'}"], Console())
    assert not (tmp_path / "run").exists()
    (tmp_path / "python").touch()
    with pytest.raises(ConfigError, match=r"runtime\.interpreter: .*python is no program"):
        check_lanes(_vllm(f"runtime.interpreter={tmp_path / 'python'}"))
    check_lanes(compose([]))
    with pytest.raises(ConfigError, match=r"trainer=megatron: .*install it with: make setup-megatron"):
        check_lanes(compose(["model=tiny", "trainer=megatron"]))


def _python(folder: Path, body: str) -> Path:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("missing", ["vllm", "dcr_recipes", "dcr_recipes vllm"])
def test_an_environment_without_its_packages_is_noticed_before_anything_is_started(
    tmp_path: Path, missing: str
) -> None:
    python = _python(tmp_path, f"echo {missing}")
    words = ["model=tiny", "runtime=vllm", f"runtime.interpreter={python}", f"run_dir={tmp_path / 'run'}"]
    said = rf"runtime=vllm: {python} cannot import {missing.replace(' ', ' and ')}; .*make setup-vllm"
    with pytest.raises(ConfigError, match=said):
        run(words, Console())
    assert not (tmp_path / "run").exists()


def test_an_environment_is_asked_for_driver_and_engine(tmp_path: Path) -> None:
    python = _python(tmp_path, f"""shift 2; echo "$*" >> {tmp_path / "asked"}""")
    check_lanes(_vllm(f"runtime.interpreter={python}"))
    check_lanes(compose(["model=tiny", f"runtime.interpreter={python}"]))
    check_lanes(compose(["model=tiny", "trainer=megatron", f"trainer.interpreter={python}"]))
    assert (tmp_path / "asked").read_text().splitlines() == [
        "dcr_recipes vllm",
        "dcr_recipes",
        "dcr_recipes megatron",
    ]


def test_what_a_real_python_lacks_is_found(tmp_path: Path) -> None:
    assert _missing(Path(sys.executable), ["dcr_recipes", "no_such_package"]) == "no_such_package"
    assert _missing(Path(sys.executable), ["dcr_recipes"]) == ""
    with pytest.raises(ConfigError, match="does not run as a Python"):
        _missing(_python(tmp_path, "exit 3"), ["dcr_recipes"])


def test_trainer_processes_run_in_their_lane(tmp_path: Path) -> None:
    config = compose(["model=tiny", "trainer=megatron"])
    made = {spec.name: spec.argv[0] for spec in specs(RunFolder(tmp_path), config)}
    lane = str(Path(sys.prefix).parent / ".venv-megatron/bin/python")
    assert {name for name, python in made.items() if python == lane} == {"owner-0", "owner-1"}
    assert {made[name] for name in made if not name.startswith("owner")} == {sys.executable}


def test_parallel_degrees_must_fit_trainer_and_batch() -> None:
    words = ["model=tiny", "trainer=megatron", "trainer.ranks=4"]
    assert compose([*words, "trainer.tensor_parallel=2"]).trainer.tensor_parallel == 2
    for more, message in (
        (["trainer.tensor_parallel=3"], r"trainer\.ranks: must be a multiple of .* = 3, got 4"),
        ([], r"recipe\.prompts: must be a multiple of trainer\.ranks = 4, got 2"),
        (["recipe.prompts=3", "trainer.pipeline_parallel=2"], r"recipe\.prompts: .* = 2, got 3"),
        (["trainer=fsdp", "trainer.tensor_parallel=2"], r"trainer=fsdp has none; use trainer=megatron"),
    ):
        with pytest.raises(ConfigError, match=message):
            compose([*words, *more])


def test_further_arguments_reach_the_engine_and_the_runs_own_cannot_be_changed(tmp_path: Path) -> None:
    config = _vllm("runtime.arguments={moe_backend:triton,enforce_eager:false}", "runtime.kv_cache_mib=3")
    save(config, tmp_path / "config.yaml")
    runtime = load(tmp_path / "config.yaml").runtime
    made = engine_arguments("m", runtime, config.recipe)
    assert (made["moe_backend"], made["enforce_eager"], made["kv_cache_memory_bytes"]) == (
        "triton",
        False,
        3 << 20,
    )
    assert made["max_num_seqs"] == config.recipe.group_size
    assert made["enable_prefix_caching"]
    assert "TORCHDYNAMO_DISABLE" not in environment(runtime)
    assert environment(_vllm().runtime)["TORCHDYNAMO_DISABLE"] == "1"
    for name in OWNED:
        with pytest.raises(ConfigError, match=rf"runtime\.arguments: {name} is the run's to decide"):
            _vllm(f"runtime.arguments={{{name}:1}}")
    assert not engine_arguments("m", _vllm("runtime.prompt_cache_mib=0").runtime, config.recipe)[
        "enable_prefix_caching"
    ]
