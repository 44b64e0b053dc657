"""``dcr export``: any kept version of a run as a Hugging Face checkpoint."""

import argparse
import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcr_recipes.commands.arguments import add_json, add_run

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig

    from dcr.model import Catalogue

_MIB = 1 << 20
_FILE_MIB = 2048
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin", ".pt", ".pth", ".gguf")


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "export",
        help="write a version of a run as a Hugging Face checkpoint",
        description="Rebuild a committed version from the archive, prove it tensor by tensor against its"
        " audit table, and write it as safetensors beside the model's configuration and tokenizer. The run"
        " may be alive. Memory: about one file and one payload.",
        epilog="exit code: 0 written, 1 the version cannot be rebuilt or proven, 2 no such run or version",
    )
    add_run(parser)
    parser.add_argument(
        "--version", type=int, metavar="N", help="version to write; default the committed one"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder to create")
    parser.add_argument(
        "--file-mib", type=int, default=_FILE_MIB, metavar="M", help="MiB of a file; default %(default)s"
    )
    add_json(parser)
    parser.set_defaults(command=run)


def run(args: argparse.Namespace) -> int:
    """Export and say what was written.

    Raises:
        ConfigError: there is no run, the version is not kept, or the folder exists.
        IntegrityError: the version cannot be rebuilt or proven.
        StoreError: the store or the disk failed.
    """
    from dcr.errors import ConfigError
    from dcr.refit.export import export_version
    from dcr.refit.versions import record_at
    from dcr_recipes.commands.opened import open_run

    if args.file_mib < 1:
        raise ConfigError(f"--file-mib: must be at least 1, got {args.file_mib}")
    opened = open_run(args.run)
    archive, latest = opened.site.archive, opened.state().record
    catalogue = opened.site.catalogue(latest)
    version = latest.version if args.version is None else args.version
    record = record_at(archive, latest, catalogue, version)
    configuration = _configuration(opened.config.model, catalogue)
    with _Bar(shown=not args.json) as advance:
        files = export_version(
            archive, record, catalogue,
            out=args.out.absolute(), file_bytes=args.file_mib * _MIB, advance=advance,
            beside=partial(_add_configuration, configuration),
        )  # fmt: skip
    told: dict[str, Any] = {
        "version": version,
        "out": str(args.out),
        "files": [path.name for path in files],
        "num_tensors": len(catalogue.tensors),
        "num_bytes": catalogue.num_bytes,
    }
    print(json.dumps(told, indent=2) if args.json else _words(told))
    return 0


def _words(told: dict[str, Any]) -> str:
    from dcr_recipes.launch.figures import size

    num_files = len(told["files"])
    files = "1 file" if num_files == 1 else f"{num_files} files"
    return (
        f"version {told['version']}: {told['num_tensors']} tensors, {size(told['num_bytes'])} in {files} of"
        f" {told['out']}, each proven by the version's audit table"
    )


def _configuration(model: str, catalogue: "Catalogue") -> "PretrainedConfig | list[Path]":
    """What stands beside the weights in the checkpoint that the run started from; looked up before any work.

    A model without one has the configuration that it was built from, with the catalogue's dtype.

    Raises:
        ConfigError: the checkpoint is not there any more.
    """
    from dcr.errors import ConfigError
    from dcr_recipes.models.build import served_config

    served = served_config(model)
    if not isinstance(served, Path):
        served.dtype = _dtype(catalogue)
        return served
    try:
        found = sorted(served.iterdir())
    except OSError as err:
        raise ConfigError(
            f"model: its configuration and tokenizer are exported too, and {served} cannot be read: {err}"
        ) from err
    return [path for path in found if path.is_file() and not path.name.endswith(_WEIGHTS)]


def _add_configuration(configuration: "PretrainedConfig | list[Path]", folder: Path) -> None:
    import shutil

    if not isinstance(configuration, list):
        configuration.save_pretrained(folder)
        return
    for path in configuration:
        shutil.copyfile(path, folder / path.name)


def _dtype(catalogue: "Catalogue") -> str:
    """The floating dtype that most of the weights have, by bytes."""
    num_bytes: Counter[str] = Counter()
    for spec in catalogue.tensors:
        num_bytes[spec.dtype] += spec.num_bytes if "float" in spec.dtype else 0
    return num_bytes.most_common(1)[0][0]


class _Bar:
    """A bar on the terminal's standard error; nothing where that is no terminal."""

    def __init__(self, *, shown: bool) -> None:
        from rich.console import Console
        from rich.progress import Progress

        disable = not shown or not sys.stderr.isatty()
        self._progress = Progress(console=Console(stderr=True), transient=True, disable=disable)
        self._task = self._progress.add_task("payloads", total=None)

    def __enter__(self) -> "Callable[[int, int], None]":
        self._progress.start()
        return lambda done, total: self._progress.update(self._task, completed=done, total=total)

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
