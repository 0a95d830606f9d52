"""The `flnb` command: lab, record, view, export, bench, dry-run, replay, doctor.

Example: `flnb record train.py -o run.flnb && flnb view run.flnb --html run.html`
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

LAB = """Opens PATH (a notebook or a folder) in JupyterLab; without PATH the quickstart notebook. PATH may also be
models.ipynb, autograd_graphs.ipynb or memory_managers.ipynb, the other notebooks that come with flnb. Every other
flag is JupyterLab's own, for instance --no-browser, --port=8899, --ServerApp.ip=127.0.0.1. Ctrl-C ends it and its
kernels."""


def _say(text: str) -> None:
    print(f"flnb {text}", file=sys.stderr)


def _doctor(_: argparse.Namespace) -> int:
    from flnb.doctor import doctor

    print(doctor())
    return 0


def record(options: argparse.Namespace) -> int:
    """Run a Python script as `__main__` under `flnb.record` and save the run, also when the script fails."""
    from flnb_telemetry.extras import require

    import flnb

    arguments, output = _output_after(options.arguments, options.output)
    path = Path(options.script)
    if not path.is_file():
        raise FileNotFoundError(f"flnb record: no file {options.script!r}; expected a Python script")
    require("pyarrow", extra="lab")  # before the script runs, not after an hour of training
    target = Path(output) if output is not None else path.with_suffix(".flnb")
    saved_arguments, saved_path = sys.argv, sys.path[0]
    sys.argv, sys.path[0] = [options.script, *arguments], str(path.resolve().parent)
    status = 0
    try:
        with flnb.record(name=path.stem) as run:
            runpy.run_path(options.script, run_name="__main__")
    except KeyboardInterrupt:
        status = 130
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception:
        sys.excepthook(*sys.exc_info())
        status = 1
    finally:
        sys.argv, sys.path[0] = saved_arguments, saved_path
    run.save(target)
    _say(f"record: saved {target}; look at it with: flnb view {target}")
    return status


def view(options: argparse.Namespace) -> int:
    """Print a saved run's summary, or write it as one self-contained HTML file."""
    import flnb

    run = flnb.load_run(options.run)
    if options.html is None:
        print(run, run.ops, sep="\n\n")
    else:
        flnb.telemetry.write_report(run, options.html)
        _say(f"view: wrote {options.html}")
    return 0


def export(options: argparse.Namespace) -> int:
    """Write a saved run as a PyTorch memory snapshot."""
    import flnb

    source = Path(options.run)
    target = Path(options.output or source.with_suffix(".pickle"))
    if target == source:
        raise ValueError(f"flnb export: {source} is a snapshot already; name another file with -o FILE")
    flnb.load_run(source).to_torch_snapshot(target)
    viewer = f"python -m torch.cuda._memory_viz trace_plot {target}, or on pytorch.org/memory_viz"
    _say(f"export: wrote {target}; see it with: {viewer}")
    return 0


def bench(options: argparse.Namespace) -> int:
    """Print the time and memory of training, by model and then as a table; 1 if a model could not be trained."""
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
    """Print the memory that training a model takes, and save the run on request; returns 1 if it does not fit."""
    import flnb

    given = options.steps, options.optimizer, options.batch, options.size
    found = flnb.memory.dry_run(options.model, options.manager, options.capacity, *given)
    print(found)
    if options.output is not None:
        found.run.save(options.output)
        _say(f"dry-run: saved {options.output}; look at it with: flnb view {options.output}")
    return 0 if found.fits else 1


def replay(options: argparse.Namespace) -> int:
    """Replay a recorded program's allocations on other memory managers: a table, or one HTML file with a figure."""
    import flnb

    managers = re.split(r",(?![^,:]*=)", options.managers)  # no comma before one more setting of the manager before it
    found = flnb.memory.replay(options.file, managers, options.capacity, sys.stderr.isatty(), options.seconds)
    print(found)
    if options.html is not None:
        from flnb_telemetry.formats.html import write_page

        figure = flnb.plot.replay(found).to_html(full_html=False, include_plotlyjs=True)
        write_page(options.html, f"Replay of {found.trace.name}", {"Managers": found._repr_html_(), "Figure": figure})
        _say(f"replay: wrote {options.html}")
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line's grammar; `lab` is taken out before, because its flags belong to JupyterLab."""
    root = argparse.ArgumentParser(prog="flnb", description="A notebook-first ML framework with live instrumentation.")
    root.add_argument("--version", action="version", version=f"flnb {importlib.metadata.version('flnb')}")
    commands = root.add_subparsers(metavar="COMMAND", required=True)
    line = "open the quickstart or another notebook in JupyterLab"
    commands.add_parser("lab", help=line, usage="flnb lab [PATH] [JupyterLab's flags]", description=LAB)

    def command(name: str, act: Callable[[argparse.Namespace], int], line: str) -> Callable[..., argparse.Action]:
        """A command that calls `act`; returns the function that adds its arguments."""
        added = commands.add_parser(name, help=line)
        added.set_defaults(act=act)
        return added.add_argument

    command("doctor", _doctor, "say what is installed, what is missing and what is active")
    one = command("record", record, "run a script, record it, save the run")
    one("-o", "--output", help="the file to write (default: SCRIPT with the ending .flnb)")
    one("script", metavar="SCRIPT")
    one("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENT", help="the script's own arguments")
    one = command("view", view, "show a saved run as text, or write it as one HTML file")
    one("run", metavar="RUN")
    one("--html", metavar="FILE", help="write a self-contained HTML report instead")
    one = command("export", export, "write a saved run in another tool's format")
    one("run", metavar="RUN")
    one("--to", required=True, choices=("torch-snapshot",), help="PyTorch's memory snapshot")
    one("-o", "--output", metavar="FILE", help="the file to write (default: RUN with the ending .pickle)")
    one = command("bench", bench, "train models on every backend there is and say what it takes")
    one("models", nargs="*", metavar="MODEL", help="of flnb.models (default: the six of the paper's table 3)")
    one("--size", default="small", choices=("small", "paper"))
    one("--backend", action="append", default=[], metavar="NAME", help="may be given again (default: all)")
    one("--rounds", type=int, default=5, help="how often each takes its turn")
    one("--seconds", type=float, default=0.5, help="how long a turn takes, about")
    one("--threads", type=int, default=1, help="of each backend")
    one = command("dry-run", dry_run, "say what memory training a model takes, without computing anything")
    one("model", metavar="MODEL", help="of flnb.models")
    one("--manager", default="caching", help="with settings: caching:split_limit=64MiB (default: caching)")
    one("--capacity", metavar="BYTES", help="of the device, such as 16GiB (default: no limit)")
    one("--batch", type=int, metavar="N", help="examples in a batch (default: the paper's)")
    one("--size", default="paper", choices=("small", "paper"))
    one("--steps", type=int, default=2)
    one("--optimizer", metavar="NAME", help="of flnb.optim (default: SGD with momentum)")
    one("-o", "--output", metavar="FILE", help="also save the recording, for flnb view and flnb replay")
    one = command("replay", replay, "replay a recorded run's allocations on other memory managers")
    one("file", metavar="FILE", help="a saved run")
    line = "names with settings, with commas between: caching,buddy,caching:split_limit=64MiB (default: caching)"
    one("--managers", default="caching", metavar="NAMES", help=line)
    one("--capacity", metavar="BYTES", help="of the device, such as 16GiB (default: no limit)")
    one("--seconds", type=float, default=5.0, help="for the offline packing beside them (default: 5)")
    one("--html", metavar="OUT", help="also write the table and a figure as one HTML file")
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status (2: the user can mend it, and the message says how; 130: Ctrl-C)."""
    line = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if line[:1] == ["lab"] and not {"-h", "--help"} & set(line):
            from flnb import lab

            return lab.run(line[1:])
        options = parser().parse_args(line)
        return options.act(options)  # type: ignore[no-any-return]
    except (ImportError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # a Ctrl-C before JupyterLab is there, for instance
        return 130


def _output_after(arguments: list[str], output: str | None) -> tuple[list[str], str | None]:
    """Accept `-o FILE` directly behind the script too, where people write it; later ones are the script's."""
    if output is None and len(arguments) >= 2 and arguments[0] in ("-o", "--output"):
        return arguments[2:], arguments[1]
    return (arguments[1:] if arguments[:1] == ["--"] else arguments), output


if __name__ == "__main__":
    sys.exit(main())
