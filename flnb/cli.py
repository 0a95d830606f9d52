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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

EXAMPLE = """Example:  flnb record -o run.flnb train.py && flnb view run.flnb --browser
flnb COMMAND --help describes a command and its arguments."""
KERNELS, BESIDE_KERNELS = (".o", ".so", ".cubin"), (".log", ".hpp", ".gch", ".part")
"""Suffixes of compiled kernels, and of other files in the folders that store them: logs, headers, unfinished files."""


def _say(text: str) -> None:
    """Print a message to stderr, so that stdout contains only results."""
    print(f"flnb {text}", file=sys.stderr)


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
    also saved if the script fails. The exit status is the script's.
    """
    from flnb.scripts import record_script

    return record_script(options.script, _script_arguments(options), options.output)


def launch(options: argparse.Namespace) -> int:
    """Run a Python script, which calls flnb.distributed.init(), on several ranks by mpiexec.

    Options of `flnb launch` come before SCRIPT; what follows SCRIPT is passed to it.
    Ranks divide the processors: each computes on an equal number of threads, unless OMP_NUM_THREADS is set.
    If a rank fails, each other rank prints for which rank it waited, and the last calls of all ranks are written to
    flight.json. The exit status is that of the rank that failed first.
    """
    from flnb.distributed.launching import launch

    return launch(options.ranks, [options.script, *_script_arguments(options)])


def merge(options: argparse.Namespace) -> None:
    """Merge the recordings of all ranks of a program into one file, with times on one clock.

    Each rank saves its own recording: run.save(f"run-{flnb.distributed.rank()}.flnb"). flnb.load_run reads the merged
    file as a mapping from rank to recording. The mapping's attribute `collectives` says which rank was late and why.
    """
    from flnb_telemetry.ranks import Ranks

    if Path(options.output).exists():
        raise FileExistsError(
            f"merge: {options.output} exists; the first argument is the file to write, as in: "
            f"flnb merge run.flnb run-0.flnb run-1.flnb"
        )
    ranks = Ranks(options.runs)
    missing = [rank for rank in range(max(run.meta.get("ranks", 1) for run in ranks.values())) if rank not in ranks]
    if missing:
        _say(f"merge: no recording of rank {', '.join(map(str, missing))}")
    ranks.save(options.output)
    _say(f"merge: wrote {options.output}, {len(ranks)} ranks; look at it with: flnb view {options.output}")


def runs(options: argparse.Namespace) -> None:
    """Print the recordings in a folder as a table, the newest first."""
    import flnb

    print(flnb.runs(options.folder))


def view(options: argparse.Namespace) -> None:
    """Print a saved recording as text, or show it in the browser.

    The text is a summary and a table of the ops with their times. With --browser, the dashboard of one recording, or of
    two side by side, opens in the browser of this machine. It is served to this machine only, until Ctrl-C.
    """
    import flnb

    if options.browser:
        if len(options.runs) > 2:
            raise ValueError(f"flnb view: got {len(options.runs)} recordings, expected one or two with --browser")
        from flnb.widgets import server

        server.serve(*options.runs, opened=_open_page)
        return
    for path in options.runs:
        run = flnb.load_run(path)
        print(*[run] if isinstance(run, Mapping) else [run, run.ops], sep="\n\n")  # a mapping: of ranks


def top(options: argparse.Namespace) -> None:
    """Show the ops, memory and state of a recording while another process writes it.

    RUN is the folder that flnb.record(path=...) is writing. In a terminal, the table is refreshed until the recording
    ends or Ctrl-C is pressed; if the output goes to a file or pipe, it is printed once.
    """
    from flnb.top import top

    top(options.run, options.every)


def _open_page(url: str) -> None:
    """Print the address of a page, and open it in the user's browser."""
    import webbrowser

    _say(f"view: {url} shows it, until Ctrl-C")
    webbrowser.open(url)


ENDINGS = {
    "html": ".html", "chrome": ".json.gz", "csv": ".csv", "svg": ".svg", "png": ".png",
    "torch-snapshot": ".pickle"
}  # fmt: skip
"""The formats of `flnb export`, and the ending of the file that each writes."""
VIEWERS = {
    "chrome": "see it on ui.perfetto.dev, or in chrome://tracing",
    "torch-snapshot": "see it with: python -m torch.cuda._memory_viz trace_plot {}, or on pytorch.org/memory_viz",
}


def export(options: argparse.Namespace) -> None:
    """Write a saved recording in another format.

    Formats: "html" is one file with the dashboard, which any browser opens without a network; "chrome" is a trace for
    ui.perfetto.dev and chrome://tracing, with the keys of PyTorch's profiler; "csv" has the times of the ops; "svg" and
    "png" are pictures of a view of the dashboard; "torch-snapshot" is a memory snapshot in PyTorch's format, for the
    viewer on pytorch.org/memory_viz.
    """
    import flnb

    source = Path(options.run)
    target = Path(options.output or source.with_suffix(ENDINGS[options.to]))
    if target == source or (target.exists() and source.exists() and target.samefile(source)):
        raise ValueError(f"flnb export: {source} is the recording itself; name another file with -o FILE")
    run = flnb.load_run(source)
    pictures = {"svg": "save_svg", "png": "save_png"}
    write = {"html": "save_html", "chrome": "save_trace", "torch-snapshot": "to_torch_snapshot"} | pictures
    if options.to in pictures:
        beside = None if options.beside is None else flnb.load_run(options.beside)
        view = options.view or ("overview" if beside is None else "comparison")
        getattr(run, write[options.to])(target, view, beside)
    elif options.view or options.beside:
        raise ValueError(f"flnb export: --view and --beside are for pictures, --to svg or png, not --to {options.to}")
    elif isinstance(run, Mapping) and options.to != "html":
        ranks = ", ".join(map(str, run))
        raise ValueError(
            f"flnb export: {source} has the ranks {ranks}; only --to html, and --to svg --view collectives, write "
            f"several ranks"
        )
    elif options.to == "csv":
        run.ops.to_csv(target)
    else:
        getattr(run, write[options.to])(target)
    hint = VIEWERS.get(options.to, "").format(target)
    _say(f"export: wrote {target}" + (f"; {hint}" if hint else ""))


def diff(options: argparse.Namespace) -> None:
    """Print for each scope which ops are slower, bigger or more frequent in the second of two saved recordings."""
    import flnb

    found = flnb.compare_runs(options.before, options.after)
    print(found.text(None) if options.all else found)


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
        _say(f"dry-run: saved {options.output}; look at it with: flnb view {options.output}")
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
        _say(f"replay: wrote {options.html}")


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
    _add_script(one)
    one = command(launch, "-n 4 train.py --epochs 3")
    one("-n", "--ranks", type=int, required=True, help="how many processes to start on this machine")
    _add_script(one)
    one = command(merge, "run.flnb run-0.flnb run-1.flnb")
    one("output", metavar="OUT", help="the file to write")
    one("runs", nargs="+", metavar="RUN", help="a saved recording of one rank")
    _add_files(command)
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


def _add_files(command: Callable[..., Callable[..., argparse.Action]]) -> None:
    """Add the subcommands that show saved recordings; ``command`` is the function inside `parser` that adds one."""
    one = command(runs, "output")
    one("folder", nargs="?", default=".", metavar="FOLDER", help="where the .flnb files are (default: here)")
    one = command(view, "run.flnb --browser")
    one("runs", metavar="RUN", nargs="+", help="a saved recording, or a memory snapshot or profiler trace of PyTorch")
    one("--browser", action="store_true", help="serve the dashboard on this machine, and open it in the browser")
    one = command(top, "run.flnb")
    one("run", metavar="RUN", help="the recording that is being written, or a saved one")
    one("--every", type=float, default=1.0, metavar="SECONDS", help="time between two readings (default: 1)")
    one = command(export, "run.flnb --to html -o run.html")
    one("run", metavar="RUN", help="a saved recording, or a memory snapshot or profiler trace of PyTorch")
    one("--to", required=True, choices=tuple(ENDINGS), help="the format")
    one("-o", "--output", metavar="FILE", help="the file to write (default: RUN with the format's ending)")
    views = "overview (the default), ops, memory, tape, timeline, collectives, devices or metrics"
    one("--view", metavar="NAME", help=f"of a picture: {views}")
    one("--beside", metavar="RUN", help="another saved recording, for a picture that compares both")
    one = command(diff, "before.flnb after.flnb")
    one("before", metavar="A", help="a saved recording")
    one("after", metavar="B", help="another one, which is compared with the first")
    one("--all", action="store_true", help="print a row for every op and scope, not only the largest differences")


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
