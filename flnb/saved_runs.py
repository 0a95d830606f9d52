"""The commands of `flnb` that list, show, compare, export and merge saved recordings.

Their docstrings are what `flnb --help` (the first line) and `flnb COMMAND --help` show.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


def say(text: str) -> None:
    """Print a message to stderr, so that stdout contains only results."""
    print(f"flnb {text}", file=sys.stderr)


KEYS = "one or more of op, family, scope, phase, line, stack, shape and dtype, with commas between"
"""The values of `--by`, for help; `flnb_telemetry.analysis.ops.KEYS` has them."""


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
        say(f"merge: no recording of rank {', '.join(map(str, missing))}")
    ranks.save(options.output)
    say(f"merge: wrote {options.output}, {len(ranks)} ranks; look at it with: flnb view {options.output}")


def runs(options: argparse.Namespace) -> None:
    """Print the recordings in a folder as a table, the newest first."""
    import flnb

    print(flnb.runs(options.folder))


def view(options: argparse.Namespace) -> None:
    """Print a saved recording as text, or show it in the browser.

    The text is a summary and a table of the ops with their times; --by line has a row for each line of the program,
    --by op,line,shape one for each op, line and shape. With --browser, the dashboard of one recording, or of two side
    by side, opens in the browser of this machine. It is served to this machine only, until Ctrl-C.
    """
    import flnb

    if options.browser:
        if options.by:
            raise ValueError("flnb view: --by is for the text, not for --browser, where the tab Ops groups by line")
        if len(options.runs) > 2:
            raise ValueError(f"flnb view: got {len(options.runs)} recordings, expected one or two with --browser")
        from flnb.widgets import server

        server.serve(*options.runs, opened=_open_page)
        return
    for path in options.runs:
        run = flnb.load_run(path)
        if not isinstance(run, Mapping):
            print(run, run.ops.by(*_keys(options)), sep="\n\n")
        elif not options.by:
            print(run)
        else:  # of ranks
            print(run, *(f"rank {rank}\n{one.ops.by(*_keys(options))}" for rank, one in run.items()), sep="\n\n")


def _keys(options: argparse.Namespace) -> list[str]:
    """Return the keys by which --by groups ops: one row for each op if the option is not given."""
    return [key.strip() for key in (options.by or "op").split(",")]


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

    say(f"view: {url} shows it, until Ctrl-C")
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
    ui.perfetto.dev and chrome://tracing, with the keys of PyTorch's profiler; "csv" has the times of the ops, a row for
    each op, or with --by op,scope,line for each op, scope and line; "svg" and "png" are pictures of a view of the
    dashboard; "torch-snapshot" is a memory snapshot in PyTorch's format, for the viewer on pytorch.org/memory_viz.
    """
    import flnb

    source = Path(options.run)
    target = Path(options.output or source.with_suffix(ENDINGS[options.to]))
    if target == source or (target.exists() and source.exists() and target.samefile(source)):
        raise ValueError(f"flnb export: {source} is the recording itself; name another file with -o FILE")
    run = flnb.load_run(source)
    if options.by and options.to != "csv":
        raise ValueError(f"flnb export: --by is for tables of ops, --to csv, not --to {options.to}")
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
        run.ops.by(*_keys(options)).to_csv(target)
    else:
        getattr(run, write[options.to])(target)
    hint = VIEWERS.get(options.to, "").format(target)
    say(f"export: wrote {target}" + (f"; {hint}" if hint else ""))


def diff(options: argparse.Namespace) -> None:
    """Print for each scope which ops are slower, bigger or more frequent in the second of two saved recordings.

    With --by line ops are compared for each line of the program instead. Lines with the same text in the same file are
    one row, wherever they are: their numbers may differ between the recordings.
    """
    import flnb

    found = flnb.compare_runs(options.before, options.after, by=options.by)
    print(found.text(None) if options.all else found)


def add_files(command: Callable[..., Callable[..., argparse.Action]]) -> None:
    """Add the subcommands for saved recordings; ``command`` is the function inside `cli.parser` that adds one."""
    one = command(merge, "run.flnb run-0.flnb run-1.flnb")
    one("output", metavar="OUT", help="the file to write")
    one("runs", nargs="+", metavar="RUN", help="a saved recording of one rank")
    one = command(runs, "output")
    one("folder", nargs="?", default=".", metavar="FOLDER", help="where the .flnb files are (default: here)")
    one = command(view, "run.flnb --browser")
    one("runs", metavar="RUN", nargs="+", help="a saved recording, or a memory snapshot or profiler trace of PyTorch")
    one("--by", metavar="KEYS", help=f"how to group the ops of the table: {KEYS} (default: op)")
    one("--browser", action="store_true", help="serve the dashboard on this machine, and open it in the browser")
    one = command(top, "run.flnb")
    one("run", metavar="RUN", help="the recording that is being written, or a saved one")
    one("--every", type=float, default=1.0, metavar="SECONDS", help="time between two readings (default: 1)")
    one = command(export, "run.flnb --to html -o run.html")
    one("run", metavar="RUN", help="a saved recording, or a memory snapshot or profiler trace of PyTorch")
    one("--to", required=True, choices=tuple(ENDINGS), help="the format")
    one("-o", "--output", metavar="FILE", help="the file to write (default: RUN with the format's ending)")
    one("--by", metavar="KEYS", help=f"how to group the ops of a CSV file: {KEYS} (default: op)")
    views = "overview (the default), ops, memory, tape, timeline, collectives, devices or metrics"
    one("--view", metavar="NAME", help=f"of a picture: {views}")
    one("--beside", metavar="RUN", help="another saved recording, for a picture that compares both")
    one = command(diff, "before.flnb after.flnb")
    one("before", metavar="A", help="a saved recording")
    one("after", metavar="B", help="another one, which is compared with the first")
    one("--by", default="scope", choices=("scope", "line"), help="where ops are compared (default: scope)")
    one("--all", action="store_true", help="print a row for every op and scope, not only the largest differences")
