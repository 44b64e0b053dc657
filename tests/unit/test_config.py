import math
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from dcr.config import CommitConfig
from dcr.errors import ConfigError
from dcr_recipes.compose import choices, compose, load, recompose, resumed, save
from dcr_recipes.config import GROUPS, RULES, RunConfig, leaves
from dcr_recipes.launch.folder import choose
from dcr_recipes.layout import RunFolder


def test_words_override_defaults() -> None:
    config = compose(["steps=3", "lr=1e-3", "refit=dense", "runtime.port=8000", "resume=true"])
    assert (config.steps, config.refit, config.runtime.port, config.resume) == (3, "dense", 8000, True)
    assert config.lr == 1e-3
    assert config.seed == RunConfig().seed


def test_the_model_decides_the_recipe_unless_one_is_named(tmp_path: Path) -> None:
    tiny, default, path = compose(["model=tiny"]), compose([]), compose([f"model={tmp_path}", "lr=1e-5"])
    assert (tiny.model, tiny.lr, tiny.recipe.task) == ("tiny", 1e-6, "random_tokens")
    assert (tiny.recipe.prompts, tiny.recipe.group_size) == (2, 8)
    assert (default.model, default.lr, default.recipe.task) == ("smollm2", 3e-6, "chain_sum")
    assert (path.model, path.lr, path.recipe) == (str(tmp_path), 1e-5, default.recipe)
    assert compose(["recipe=grpo_tiny"]) == tiny


def test_help_shows_what_a_run_without_words_takes() -> None:
    default, shown = leaves(compose([])), leaves(RunConfig())
    apart = {key for key in shown if shown[key] != default[key]}
    assert apart == {"runtime.packed", "codec.chunk_mib", "codec.bucket_mib"}


def test_strings_are_taken_as_they_are() -> None:
    assert compose(["run_dir=/somewhere/a=b [1]"]).run_dir == "/somewhere/a=b [1]"


@pytest.mark.parametrize("text", ["[runtime-0:a.b:2:1,owner-1:c:1]", '["runtime-0:a.b:2:1", "owner-1:c:1"]'])
def test_lists(text: str) -> None:
    assert compose([f"faults.kill={text}"]).faults.kill == ["runtime-0:a.b:2:1", "owner-1:c:1"]


@pytest.mark.parametrize("group", GROUPS)
def test_every_shipped_choice_composes(group: str) -> None:
    assert choices(group)
    for choice in choices(group):
        beside = ["transport=s3"] if (group, choice) == ("commit", "s3") else []  # a record needs a bucket
        assert leaves(compose([f"{group}={choice}", *beside]))[f"{group}.name"] is not None


def test_the_shipped_runtime_packs_modules() -> None:
    packed = compose([]).runtime.packed
    assert all(parts for parts in packed.values())


def test_a_later_word_wins_over_its_group_and_earlier_words() -> None:
    assert compose(["steps=1", "steps=2", "runtime.threads=4", "runtime=hf"]).runtime.threads == 4
    assert compose(["steps=1", "steps=2"]).steps == 2


WRONG = {
    "stpes=3": "unknown key 'stpes'; nearest: steps",
    "port=1": "unknown key 'port'; nearest: runtime.port",
    "runtime.prot=1": "nearest: runtime.port",
    "trainer.zzz=1": "nearest: trainer.name, trainer.ranks",
    "zzz=1": "`dcr grpo --help` lists the keys",
    "+steps=1": "nearest: steps",
    "steps": "'steps': expected key=value",
    "=3": "expected key=value",
    "steps=abc": "steps: expected an integer, got 'abc'",
    "steps=1.5": "steps: expected an integer, got '1.5'",
    "steps=true": "steps: expected an integer",
    "steps=1,2": "steps: expected an integer",
    "steps=null": "steps: expected an integer",
    "steps=": "steps: expected an integer",
    "steps=-1": "steps: must be at least 0, got -1",
    "lr=fast": "lr: expected a number, got 'fast'",
    "lr=nan": "lr: must be at least 0",
    "lr=inf": "lr: must be below inf",
    "resume=maybe": "resume: expected true or false, got 'maybe'",
    "refit=sparse": "refit: 'sparse' is not a choice; accepted: dcr, dense",
    "recipe=ppo": "recipe: 'ppo' is not a choice; accepted: grpo_smollm2, grpo_tiny",
    "codec.name=none": "codec.name: 'none' is not a choice; accepted:",
    "runtime.port=65536": "runtime.port: must be below 65536",
    "commit.retry_pause_s=-1": "commit.retry_pause_s: must be at least 0",
    "runtime.packed=3": "runtime.packed: expected a mapping",
    "runtime=trtllm": "runtime: 'trtllm' is not a choice; accepted: hf, mixed, sglang, vllm",
    "runtime.tensor_parallel=2": "runtime.tensor_parallel: runtime=hf keeps a model in one process",
    "runtime.arguments={a:1}": "runtime.arguments: runtime=hf keeps a model in one process",
    "runtime=sglang runtime.arguments={tp_size:2}": "runtime.arguments: tp_size is the run's to decide; set",
    "runtime=mixed runtime.engines=[]": "runtime.engines: accepted are vllm, sglang; got none",
    "runtime=mixed runtime.engines=[vllm,hf]": "runtime.engines: accepted are vllm, sglang; got hf",
    "runtime=mixed runtime.instances=1": "runtime.instances: 2 kinds need as many, got 1",
    "runtime=mixed runtime.arguments={a:1}": "runtime.arguments: each kind of runtime=mixed would need its",
    "runtime=vllm runtime.engines=[vllm]": "runtime.engines: runtime=vllm is one kind; use runtime=mixed",
    "runtime=vllm runtime.tensor_parallel=0": "runtime.tensor_parallel: must be at least 1, got 0",
    "runtime=vllm runtime.arguments=[a]": "runtime.arguments: expected a mapping",
    "runtime=vllm runtime.arguments={dtype:half}": "runtime.arguments: dtype is the run's to decide; leave",
    "runtime=vllm runtime.arguments={max_model_len:9}": "set runtime.context_tokens",
    "runtime=vllm runtime.context_tokens=20": "runtime.context_tokens: the probe takes 76, got 20",
    "model=tiny runtime=vllm runtime.context_tokens=20 runtime.probe=false": "must be at least recipe.prompt",
    "faults.kill=abc": "faults.kill: expected a list",
    "faults.kill=[a:b]": "faults.kill: 'a:b' is not process:point:nth",
    "faults.kill=[a:b:0]": "is not process:point:nth",
    "recipe=grpo_tiny recipe.task=chain_sum": "recipe.task: model=tiny has no tokenizer for chain_sum",
    "refit=dense faults.kill_runtime_every=3": "faults.kill_runtime_every: kills while a delta is applied",
    "recipe.prompts=3": "recipe.prompts: must be a multiple of trainer.ranks = 2, got 3",
    "seed=9223372036854775808": "seed: must be below 9.22337e+18, got 9223372036854775808",
    "run_dir=a\udcff": "run_dir: 'a\\udcff' is not valid UTF-8",
    "run_dir=${oc.env:HOME}": "run_dir: '${oc.env:HOME}' must be a plain value",
}


@pytest.mark.parametrize("word", WRONG)
def test_a_mistake_is_one_line_that_names_the_key(word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose(word.split(" "))
    assert WRONG[word] in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    config = compose(["steps=3", "runtime.packed={qkv_proj:[q_proj,k_proj]}", "faults.kill=[a:b:1]"])
    save(config, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("text", ["steps: [", "steps: abc", "other: 1", "- 1", "steps: -1"])
def test_a_damaged_file_is_a_clear_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", [key for key, rule in RULES.items() if rule.fixed])
def test_a_file_that_lacks_what_a_run_may_not_change_is_refused(tmp_path: Path, key: str) -> None:
    """Cut off or edited: a default in its place would train another run."""
    path = tmp_path / "config.yaml"
    save(compose(["lr=1e-6"]), path)
    whole = OmegaConf.load(path)
    *groups, last = key.split(".")
    inner = OmegaConf.select(whole, ".".join(groups)) if groups else whole
    assert isinstance(inner, DictConfig)
    del inner[last]
    OmegaConf.save(whole, path)
    with pytest.raises(ConfigError, match=rf"config\.yaml: {key} is missing: put back"):
        load(path)


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("commit.collect_deadline_s=0", r"commit\.collect_deadline_s: must be more than 0"),
        ("commit.fence_deadline_s=1e30", r"commit\.fence_deadline_s: must be below 1e\+07"),
        ("runtime.patience_s=1e30", r"runtime\.patience_s: must be below"),
        ("trainer.threads=99999999999999999999999", r"trainer\.threads: must be below"),
    ],
)
def test_what_no_clock_or_counter_holds_is_refused(word: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose([word])


def test_a_file_of_other_bytes_is_a_clear_error(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(b"\xff\xfe\x00steps")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(tmp_path / "config.yaml")


def test_the_store_may_be_named_again_by_its_relative_path() -> None:
    saved = compose(["transport.path=shared/store"])
    assert saved.transport.path == str(Path("shared/store").absolute())
    assert recompose(saved, ["transport.path=shared/store"]) == saved


def test_a_folder_for_staged_payloads_is_the_same_wherever_a_run_is_resumed() -> None:
    assert compose(["staging.path=staged"]).staging.path == str(Path("staged").absolute())
    assert compose(["staging.path=~/staged"]).staging.path == str(Path.home() / "staged")
    assert compose([]).staging.path == ""


@pytest.mark.parametrize(
    ("words", "run_dir"),
    [
        ([], None),
        (["run_dir=a"], None),
        (["resume=true"], ""),
        (["run_dir=a", "commit.endpoints=[b]", "resume=True"], "a"),
        (["resume=1", "run_dir=a", "run_dir=b"], "b"),
        (["resume=true", "resume=false"], None),
        (["+resume=true"], None),
    ],
)
def test_two_keys_tell_which_run_is_resumed(words: list[str], run_dir: str | None) -> None:
    assert resumed(words) == run_dir


def test_a_bucket_whose_region_was_wrong_is_resumed(tmp_path: Path) -> None:
    save(compose(["transport=s3", "transport.bucket=b", "transport.ahead=7"]), RunFolder(tmp_path).config)
    told = ["resume=true", f"run_dir={tmp_path}", "transport.region=eu"]
    for words in (told, [*told, "transport=s3"]):
        transport = choose(words)[1].transport
        assert (transport.region, transport.bucket, transport.ahead) == ("eu", "b", 7)


def test_a_choice_that_a_run_has_already_changes_nothing() -> None:
    saved = compose(["trainer.ranks=4", "runtime.instances=3", "codec.threads=2", "recipe.response_tokens=9"])
    again = ["trainer=fsdp", "runtime=hf", "transport=directory", "commit=sqlite", "codec=planes"]
    assert recompose(saved, [*again, "recipe=grpo_smollm2"]) == saved
    assert recompose(saved, ["codec.threads=5", "codec=planes"]).codec.threads == 5


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("runtime=mixed", "runtime.name: this run was started with 'hf'; 'mixed' needs a new run_dir"),
        ("commit=s3", "commit.name: this run was started with 'sqlite'; 's3' needs a new run_dir"),
        ("codec=published", "codec.name: this run was started with 'planes'; 'published' needs a new"),
        ("recipe=grpo_tiny", "recipe.task: this run was started with 'chain_sum'; 'random_tokens' needs"),
    ],
)
def test_another_choice_needs_a_new_run(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        recompose(compose([]), [word])


def test_resume_keeps_what_the_run_was_started_with() -> None:
    saved = compose(["seed=7", "steps=3", "verify=off"])
    resumed = recompose(saved, ["resume=true", "steps=5", "recipe=grpo_smollm2"])
    assert (resumed.seed, resumed.steps, resumed.verify, resumed.resume) == (7, 5, "off", True)
    with pytest.raises(ConfigError, match="seed: this run was started with 7; 8 needs a new run_dir"):
        recompose(saved, ["seed=8"])


def test_every_rule_is_about_a_key_and_its_default_obeys_it() -> None:
    known = leaves(RunConfig())
    assert not set(RULES) - set(known)
    assert all(not rule.choices or known[key] in rule.choices for key, rule in RULES.items())


def test_the_core_is_given_its_own_part() -> None:
    core = compose(["codec.zstd_level=3", "commit.max_attempts=2"]).refit_config()
    assert core.codec.zstd_level == 3
    assert isinstance(core.commit, CommitConfig)
    assert core.commit.max_attempts == 2
    assert math.isfinite(core.commit.finish_deadline_s)
