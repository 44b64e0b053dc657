"""Words of a command line -> a checked RunConfig, with Hydra's groups and override grammar.

The only module that sees hydra and OmegaConf. Each mistake is one ConfigError that names the key.
"""

import contextlib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dcr.errors import ConfigError
from dcr.transport.durable import replace_durably
from dcr_recipes.checks import check_together
from dcr_recipes.config import GROUPS, RULES, RunConfig, leaves
from dcr_recipes.faults import parse_kill
from dcr_recipes.models.catalogue import TINY, canonical

if TYPE_CHECKING:
    from omegaconf import DictConfig

_LONGEST_S = 1e7
"""Seconds of any one wait: sums of several must fit into the system's own times."""
_MOST = 1 << 31
"""Of whatever is counted, where no rule says less."""
_EXPECTED = {bool: "true or false", int: "an integer", float: "a number", list: "a list", dict: "a mapping"}


def compose(words: Sequence[str]) -> RunConfig:
    """Compose the configuration of a new run from ``key=value`` words; ``group=choice`` picks a YAML.

    Raises:
        ConfigError: an unknown key or choice, a wrong type, or a value out of range.
    """
    pairs = [_split(word) for word in words]
    picked = _picked(pairs)
    if ("model", TINY) in pairs and "recipe" not in dict(picked):
        picked.append(("recipe", "grpo_tiny"))  # it speaks no language: the default recipe is not for it
    tree = _compose_groups(picked)
    _assign_all(tree, pairs)
    return _checked(tree)


def resumed(words: Sequence[str]) -> str | None:
    """The ``run_dir`` of the run that ``words`` resume, which may be empty; None: they describe a new run.

    The other words are not looked at: what they may say depends on the run.

    Raises:
        ConfigError: one of the two keys has a wrong value.
    """
    from omegaconf import OmegaConf

    tree = OmegaConf.structured(RunConfig)
    _assign_all(tree, [pair for pair in map(_split, words) if pair[0] in ("resume", "run_dir")])
    return str(tree.run_dir) if tree.resume else None


def recompose(saved: RunConfig, words: Sequence[str]) -> RunConfig:
    """Apply ``words`` to the configuration of a run that is resumed.

    A group's choice that the run has already changes nothing.

    Raises:
        ConfigError: as for :func:`compose`, or a word changes what a run may not change.
    """
    from omegaconf import OmegaConf

    pairs = [_split(word) for word in words]
    tree = OmegaConf.structured(saved)
    if picked := _picked(pairs):
        chosen = _compose_groups(picked)
        for group, _ in picked:
            _pick_again(tree, chosen, group)
    _assign_all(tree, pairs)
    config = _settled(tree)
    _require_kept(saved, config)
    check_together(config)
    return config


def _pick_again(tree: "DictConfig", chosen: "DictConfig", group: str) -> None:
    """Another choice than the run's takes its place, and is refused by the fixed key that names it."""
    from omegaconf import OmegaConf

    name = "recipe.task" if group == "recipe" else f"{group}.name"  # both recipes are named grpo
    if OmegaConf.select(tree, name) != OmegaConf.select(chosen, name):
        OmegaConf.update(tree, group, chosen[group])


def _require_kept(saved: RunConfig, config: RunConfig) -> None:
    old, new = leaves(saved), leaves(config)
    for key in old:
        if key in RULES and RULES[key].fixed and old[key] != new[key]:
            raise ConfigError(
                f"{key}: this run was started with {old[key]!r}; {new[key]!r} needs a new run_dir"
            )


def save(config: RunConfig, path: Path) -> None:
    """Write the resolved configuration as YAML, durably: without it a run cannot be resumed."""
    from omegaconf import OmegaConf

    replace_durably(path, OmegaConf.to_yaml(OmegaConf.structured(config)).encode())


def load(path: Path) -> RunConfig:
    """Read what :func:`save` wrote.

    Raises:
        ConfigError: the file is missing, is not such a configuration, or lacks what a run may not change.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError  # type: ignore[import-untyped]

    try:
        found = OmegaConf.load(path)
        merged = OmegaConf.merge(OmegaConf.structured(RunConfig), found)
        _require_fixed_keys(found)
        return _checked(merged)
    except (OSError, UnicodeDecodeError, OmegaConfBaseException, YAMLError) as err:
        raise ConfigError(f"{path}: {_first_line(err)}") from err


def _require_fixed_keys(found: object) -> None:
    """A file that was cut off must not give the run another learning rate."""
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import ConfigAttributeError

    for key, rule in RULES.items():
        if rule.fixed and (not isinstance(found, DictConfig) or OmegaConf.select(found, key) is None):
            raise ConfigAttributeError(f"{key} is missing: put back what the run was started with")


def choices(group: str) -> list[str]:
    """Names of a group's YAML files, sorted."""
    folder = files("dcr_configs").joinpath(group)
    return sorted(e.name.removesuffix(".yaml") for e in folder.iterdir() if e.name.endswith(".yaml"))


def _split(word: str) -> tuple[str, str]:
    key, separator, text = word.partition("=")
    if not separator or not key:
        raise ConfigError(f"{word!r}: expected key=value")
    require_text(key, text)
    return key, text


def _picked(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(key, text) for key, text in pairs if key in GROUPS]


def require_text(key: str, text: str) -> None:
    """Refuse what no JSON message or YAML file can hold.

    Raises:
        ConfigError: ``text`` came from bytes that are not UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as err:
        raise ConfigError(f"{key}: {text!r} is not valid UTF-8; choose another name") from err


def _compose_groups(picked: Sequence[tuple[str, str]]) -> "DictConfig":
    from hydra import compose as hydra_compose
    from hydra import initialize_config_module
    from omegaconf import OmegaConf

    for group, choice in picked:
        if choice not in choices(group):
            raise ConfigError(f"{group}: {choice!r} is not a choice; accepted: {', '.join(choices(group))}")
    with initialize_config_module("dcr_configs", version_base="1.3"):
        chosen = hydra_compose("run", overrides=[f"{group}={choice}" for group, choice in picked])
    OmegaConf.set_struct(chosen, False)  # the schema alone says which keys there are
    with _one_line("the shipped configuration"):
        return cast("DictConfig", OmegaConf.merge(OmegaConf.structured(RunConfig), chosen))


def _assign_all(tree: "DictConfig", pairs: Sequence[tuple[str, str]]) -> None:
    for key, text in pairs:
        if key not in GROUPS:
            _assign(tree, key, text)


def _assign(tree: "DictConfig", key: str, text: str) -> None:
    from omegaconf import OmegaConf
    from omegaconf.errors import ValidationError

    known = leaves(RunConfig())
    if key not in known:
        raise ConfigError(f"unknown key {key!r}; {_nearest(key, known)}")
    if "${" in text:
        raise ConfigError(f"{key}: {text!r} must be a plain value")
    kind = type(known[key])
    value = text if kind is str else _parse(key, text, kind)
    try:
        OmegaConf.update(tree, key, value, merge=False)
    except ValidationError as err:
        raise ConfigError(f"{key}: expected {_EXPECTED[kind]}, got {text!r}") from err


def _nearest(key: str, known: dict[str, object]) -> str:
    same_leaf = [name for name in known if name.rpartition(".")[2] == key]
    close = same_leaf or get_close_matches(key, known, n=3, cutoff=0.6)
    if not close:
        top = key.partition(".")[0]
        close = [name for name in known if name.partition(".")[0] == top]
    return f"nearest: {', '.join(close)}" if close else "`dcr grpo --help` lists the keys"


def _parse(key: str, text: str, kind: type) -> object:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(f"{key}={text}")
        sweep = override.is_sweep_override()
    except HydraException as err:
        raise ConfigError(f"{key}: expected {_EXPECTED[kind]}, got {text!r}") from err
    value = None if sweep else override.value()
    if value is None:
        raise ConfigError(f"{key}: expected {_EXPECTED[kind]}, got {text!r}")
    return value


def _checked(tree: object) -> RunConfig:
    config = _settled(tree)
    check_together(config)
    return config


def _settled(tree: object) -> RunConfig:
    """Each value by itself is right and in its one form."""
    from omegaconf import OmegaConf

    with _one_line("configuration"):
        config = cast("RunConfig", OmegaConf.to_object(cast("DictConfig", tree)))
    for key, value in leaves(config).items():
        _check_leaf(key, value)
    for entry in config.faults.kill:
        parse_kill(entry)
    config.model = canonical(config.model)
    config.transport.path = _absolute(config.transport.path)
    config.staging.path = _absolute(config.staging.path)
    return config


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute()) if path else ""


def _check_leaf(key: str, value: object) -> None:
    rule = RULES.get(key)
    if rule is not None and rule.choices and value not in rule.choices:
        raise ConfigError(f"{key}: {value!r} is not a choice; accepted: {', '.join(rule.choices)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    low, below = (rule.minimum, rule.below) if rule is not None else (0, None)
    if key.endswith("_deadline_s") and value <= 0:
        raise ConfigError(f"{key}: must be more than 0, got {value}")
    below = below or (_LONGEST_S if key.endswith("_s") else _MOST if isinstance(value, int) else None)
    if low is not None and not value >= low:
        raise ConfigError(f"{key}: must be at least {low:g}, got {value}")
    if (below is not None and value >= below) or value == float("inf"):
        raise ConfigError(f"{key}: must be below {below or float('inf'):g}, got {value}")


@contextlib.contextmanager
def _one_line(where: str) -> Iterator[None]:
    from omegaconf.errors import OmegaConfBaseException

    try:
        yield
    except OmegaConfBaseException as err:
        raise ConfigError(f"{where}: {_first_line(err)}") from err


def _first_line(err: BaseException) -> str:
    return (str(err).splitlines() or [type(err).__name__])[0]
