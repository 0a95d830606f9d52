"""The `flnb` command line; `flnb --help` lists its commands.

Example: `flnb record -o run.flnb train.py && flnb view run.flnb --browser`
"""

from __future__ import annotations

import argparse
import importlib.metadata
import inspect
import os
import re
import sys
from collections.abc import Callable, Sequence

from flnb.saved_runs import add_files, say

EXAMPLE = """Example:  flnb record -o run.flnb train.py && flnb view run.flnb --browser
flnb COMMAND --help describes a command and its arguments."""
KERNELS, BESIDE_KERNELS = (".o", ".so", ".cubin"), (".log", ".hpp", ".gch", ".part")
"""Suffixes of compiled kernels, and of other files in the folders that store them: logs, headers, unfinished files."""


# The commands: their docstrings are what `flnb --help` (the first line) and `flnb COMMAND --help` show.


def lab(options: argparse.Namespace) -> int:
    """Open a notebook or a folder in JupyterLab; without PATH the quickstart, with flnb's other notebooks beside it.

    PATH may also be models.ipynb, backends.ipynb, autograd_graphs.ipynb, memory_managers.ipynb, telemetry.ipynb,
    distributed.ipynb or cuda.ipynb, the other notebooks that come with flnb. All other flags are JupyterLab's own.
    Ctrl-C ends JupyterLab and its kernels.
    """
    from flnb import lab

    return lab.run(options.arguments)


def doctor(_: argparse.Namespace) -> None:
    """Print what is installed, what is missing and what is active."""
    from flnb.doctor import doctor

    print(doctor())


def cache(options: argparse.Namespace) -> None:
    """Print where compiled kernels are stored, their number and total size; or delete them.

    The folders are $FLNB_CACHE/native and $FLNB_CACHE/cuda if that variable is set, otherwise two in the user's cache
    folder. Deleted kernels are compiled again when needed.
    """
    from flnb_backends.caches import CACHES, cache_folder
    from flnb_telemetry import quantity

    for folder in map(cache_folder, CACHES):
        files = [path for path in folder.glob("*") if path.suffix in (*KERNELS, *BESIDE_KERNELS)]
        size = quantity.size(sum(path.stat().st_size for path in files))
        count = sum(path.suffix in KERNELS for path in files)
        if options.action == "clear":
            for path in files:
                path.unlink(missing_ok=True)  # another process may have deleted it
        what = f"{count} compiled {'kernel' if count == 1 else 'kernels'}, {size}, in {folder}"
        print(f"deleted {what}" if options.action == "clear" else what)


def record(options: argparse.Namespace) -> int:
    """Run a Python script, record every op and allocation, and save the recording.

    Options of `flnb record` come before SCRIPT; what follows SCRIPT is passed to it. Events are written while the
    script runs: `flnb top` can show them, and if the script is killed, only the last seconds are lost. The recording is
    also saved if the script fails. With --stacks, ops and allocations have the whole call stack, else the line of the
    script. The exit status is the script's.
    """
    from flnb.scripts import record_script

    return record_script(options.script, _script_arguments(options), options.output, options.stacks)


def launch(options: argparse.Namespace) -> int:
    """Run a Python script, which calls flnb.distributed.init(), on several ranks by mpiexec.

    Options of `flnb launch` come before SCRIPT; what follows SCRIPT is passed to it.
    Ranks divide the processors: each computes on an equal number of threads, unless OMP_NUM_THREADS is set.
    If a rank fails, each other rank prints for which rank it waited, and the last calls of all ranks are written to
    flight.json. The exit status is that of the rank that failed first.
    """
    from flnb.distributed.launching import launch

    return launch(options.ranks, [options.script, *_script_arguments(options)])


def bench(options: argparse.Namespace) -> int:
    """Train models on one or more backends and print a table of times and memory.

    Progress goes to stderr. The exit status is 1 if a model could not be trained.
    """
    from flnb.bench import WorkerError, table
    from flnb.bench.command import bench

    rows = []
    try:
        given = options.models, options.size, options.backend, options.rounds, options.seconds, options.threads
        for row in bench(*given):
            rows.append(row)
            print(f"{row['model']} on {row['backend']}: {row['s / 100']} s / 100 iterations", file=sys.stderr)
    except WorkerError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(rows))
    return 0


def dry_run(options: argparse.Namespace) -> int:
    """Print the memory that training a model takes, without computing anything.

    With --output the recording of the allocations is saved. The exit status is 1 if the training needs more memory than
    --capacity.
    """
    import flnb

    given = options.steps, options.optimizer, options.batch, options.size
    found = flnb.memory.dry_run(options.model, options.manager, options.capacity, *given)
    print(found)
    if options.output is not None:
        found.run.save(options.output)
        say(f"dry-run: saved {options.output}; look at it with: flnb view {options.output}")
    return 0 if found.fits else 1


def replay(options: argparse.Namespace) -> None:
    """Replay the allocations of a saved recording on other memory managers.

    Prints a table of the memory that each manager reserves; with --html the table is also written to a file, with a
    figure.
    """
    import flnb

    managers = re.split(r",(?![^,:]*=)", options.managers)  # not at commas between the settings of one manager
    found = flnb.memory.replay(options.file, managers, options.capacity, sys.stderr.isatty(), options.seconds)
    print(found)
    if options.html is not None:
        from flnb_telemetry.formats.html import write_page

        figure = flnb.plot.replay(found).to_html(full_html=False, include_plotlyjs=True)
        write_page(options.html, f"Replay of {found.trace.name}", {"Managers": found._repr_html_(), "Figure": figure})
        say(f"replay: wrote {options.html}")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with a subcommand for each of the functions above such as `view`."""
    raw = argparse.RawDescriptionHelpFormatter
    about = "A notebook-first machine-learning framework that records what your program does."
    root = argparse.ArgumentParser(prog="flnb", description=about, epilog=EXAMPLE, formatter_class=raw)
    root.add_argument("--version", action="version", version=f"flnb {importlib.metadata.version('flnb')}")
    commands = root.add_subparsers(metavar="COMMAND", required=True)

    def command(act: Callable[[argparse.Namespace], int | None], example: str) -> Callable[..., argparse.Action]:
        """Add a subcommand that runs the function ``act``; returns the `add_argument` method of its parser.

        The name and the help of the subcommand are the function's name and docstring. ``example`` has the arguments of
        an example call, for the help.
        """
        name, text = act.__name__.replace("_", "-"), inspect.getdoc(act) or ""
        line = text.split("\n")[0].rstrip(".")
        example = f"Example:  flnb {name} {example}"
        added = commands.add_parser(name, help=line, description=text, epilog=example, formatter_class=raw)
        added.set_defaults(act=act)
        return added.add_argument

    one = command(lab, "models.ipynb --no-browser --port=8899")
    one("arguments", nargs=argparse.REMAINDER, metavar="[PATH] [FLAGS]", help="a notebook or folder; Jupyter's flags")
    command(doctor, "")
    command(cache, "info")("action", choices=("info", "clear"), help="print what is stored, or delete it")
    one = command(record, "-o run.flnb train.py --epochs 3")
    one("-o", "--output", metavar="FILE", help="the file to write (default: SCRIPT with the ending .flnb)")
    one("--stacks", action="store_true", help="record whole call stacks (about 1 us per op)")
    _add_script(one)
    one = command(launch, "-n 4 train.py --epochs 3")
    one("-n", "--ranks", type=int, required=True, help="how many processes to start on this machine")
    _add_script(one)
    add_files(command)
    one = command(bench, "resnet50 vit --backend numpy --rounds 3")
    one("models", nargs="*", metavar="MODEL", help="of flnb.models (default: the six of the paper's table 3)")
    one("--size", default="small", choices=("small", "paper"), help="size of the models (default: small)")
    one("--backend", action="append", default=[], metavar="NAME", help="may be given again (default: the active one)")
    one("--rounds", type=int, default=5, help="how often each backend takes its turn (default: 5)")
    one("--seconds", type=float, default=0.5, help="how long a turn takes, about (default: 0.5)")
    one("--threads", type=int, default=1, help="threads of each backend (default: 1)")
    one = command(dry_run, "bert --capacity 16GiB --batch 32")
    one("model", metavar="MODEL", help="the name of a model of flnb.models")
    one("--manager", default="caching", help="a memory manager, with settings: caching:split_limit=64MiB")
    one("--capacity", metavar="BYTES", help="the device's memory, such as 16GiB (default: no limit)")
    one("--batch", type=int, metavar="N", help="examples in a batch (default: the paper's)")
    one("--size", default="paper", choices=("small", "paper"), help="size of the model (default: paper)")
    one("--steps", type=int, default=2, help="training steps (default: 2)")
    one("--optimizer", metavar="NAME", help="of flnb.optim (default: SGD with momentum)")
    one("-o", "--output", metavar="FILE", help="also save the recording, for flnb view and flnb replay")
    one = command(replay, "run.flnb --managers caching,buddy --html replay.html")
    one("file", metavar="FILE", help="a saved recording")
    line = "names with settings, with commas between: caching,buddy,caching:split_limit=64MiB (default: caching)"
    one("--managers", default="caching", metavar="NAMES", help=line)
    one("--capacity", metavar="BYTES", help="the device's memory, such as 16GiB (default: no limit)")
    one("--seconds", type=float, default=5.0, help="search time for the best possible packing (default: 5)")
    one("--html", metavar="OUT", help="also write the table and a figure as one HTML file")
    return root


def _add_script(one: Callable[..., argparse.Action]) -> None:
    """Add the script and its arguments to a subcommand, whose `add_argument` method is ``one``."""
    one("script", metavar="SCRIPT", help="the Python script to run")
    one("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="all that follows is passed to the script")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process, and return the exit status.

    Status 2 is an error that the user can correct as the message describes, 130 is Ctrl-C, and 141 means that the
    output's reader has closed it, as `head` does.
    """
    line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            if line[:1] == ["lab"] and not {"-h", "--help"} & set(line):  # flags such as --port are JupyterLab's
                return lab(argparse.Namespace(arguments=line[1:]))
            options = parser().parse_args(line)
            return options.act(options) or 0
        finally:
            print(end="", flush=True)  # here, not when Python ends, which would report a closed pipe
    except BrokenPipeError:
        _drop_output()
        return 141  # 128 + SIGPIPE, as shells report of other programs
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # for instance before JupyterLab has started
        return 130


def _drop_output() -> None:
    """Discard all further output, because its reader, such as `head`, has closed the pipe."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(nowhere, stream.fileno())


def _script_arguments(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the script, without a `--` that separates them from it."""
    found: list[str] = options.arguments
    return found[1:] if found[:1] == ["--"] else found


if __name__ == "__main__":
    sys.exit(main())
