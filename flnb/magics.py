"""IPython magics: `%flnb`, `%%record` and `%%ranks`, which `%load_ext flnb` registers."""

from __future__ import annotations

import ast
import os
import sys
from typing import Any

from flnb_telemetry.exports import method_for

from flnb import show
from flnb.collector import tune_gc

HELP = """%flnb dashboard              show the live dashboard, which follows every recording
%flnb doctor                 print what is installed, what is missing and what is active
%flnb help                   print this list
%%record [--inputs] [--stacks] [--to FILE] [name]
                             run the cell under flnb.record(name); the recording is shown and stored as `run`
                             (--inputs also stores the inputs of every op, which run.calls[i] runs again; --stacks
                             whole call stacks instead of one line; --to writes the recording to FILE, which ends in
                             .flnb, .html, .json.gz, .svg or .pickle)
%%ranks [--record] [--stacks]
                             run the cell on all ranks of the cluster that flnb.distributed.Cluster(4) started
                             (--record records every rank; `run` has the recordings on one clock; with --stacks they
                             have whole call stacks)"""


class Magics:
    """The magics `%flnb`, `%%record` and `%%ranks` of one IPython shell."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def flnb(self, line: str) -> Any:
        """Run a command of flnb: `%flnb dashboard`, `%flnb doctor` or `%flnb help`."""
        word = line.strip()
        if word == "dashboard":
            from flnb.widgets.dashboard import dashboard

            return dashboard()
        if word == "doctor":
            from flnb.doctor import doctor

            return print(doctor())
        if word in ("", "help"):
            return print(HELP)
        raise ValueError(
            f"%flnb: unknown command {word!r}; the commands are dashboard, doctor and help; "
            f"those of a terminal, such as view, begin with an exclamation mark: !flnb {word}"
        )

    def record(self, line: str, cell: str) -> Any:
        """Run the cell under `flnb.record`; the recording becomes the variable `run`, also if the cell fails.

        With ``--inputs`` the inputs of each op are stored, so that ``run.calls[i].open_in_cell()`` works; with
        ``--stacks`` ops and allocations have whole call stacks. ``--to FILE`` writes the recording to a file in the
        format that its ending names (see `Recording.save_as`), also if the cell fails. Any other option is a
        ValueError.
        """
        from flnb.dispatch.recording import record

        words, target = _target(line.split())
        given = {word for word in words if word.startswith("--")}
        if unknown := sorted(given - {"--inputs", "--stacks"}):
            raise ValueError(f"%%record: unknown option {unknown[0]}; the options are: --inputs, --stacks, --to FILE")
        name = " ".join(word for word in words if word not in given)
        first, last = self._compiled(cell)
        namespace = self.shell.user_ns
        run = None
        try:
            with record(name or "cell", inputs="--inputs" in given, stacks="--stacks" in given) as run:
                namespace["run"] = run
                exec(first, namespace)
                result = None if last is None else eval(last, namespace)
        finally:
            if target and run is not None:
                run.save_as(target)
        if result is not None:
            self.shell.displayhook(result)
        return run

    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on all ranks of the active `flnb.distributed.Cluster`; each line of output begins with the rank.

        With ``--record`` every rank is recorded, and the variable `run` holds all recordings, also if the cell fails;
        with ``--record --stacks`` they have whole call stacks.
        """
        from flnb.distributed import Cluster

        options = line.split()
        record, stacks = "--record" in options, "--stacks" in options
        if {*options} - {"--record", "--stacks"} or (stacks and not record):
            expected = "expected nothing, --record or --record --stacks after %%ranks"
            raise ValueError(f"%%ranks: got {line.strip()!r}; {expected}")
        cluster = Cluster.active
        if cluster is None:
            raise RuntimeError("%%ranks: no ranks run; start some with: cluster = flnb.distributed.Cluster(4)")
        if "flnb.widgets.dashboard" in sys.modules:  # the dashboard may be older than the cluster
            sys.modules["flnb.widgets.dashboard"].show_cluster()
        source = cell if cell.startswith("%%") else f"# %%ranks\n{cell}"  # lines keep their numbers
        try:
            cluster.run(source, record=record, stacks=stacks)
        finally:
            if record:
                self.shell.user_ns["run"] = cluster.recorded

    def _compiled(self, cell: str) -> tuple[Any, Any]:
        """Compile a cell so that tracebacks show its lines; return its statements and its last expression (or None)."""
        source = self.shell.transform_cell(cell)
        tree = self.shell.transform_ast(self.shell.compile.ast_parse(source))
        name = self.shell.compile.cache(source, self.shell.execution_count)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        if last is not None and source.rstrip().endswith(";"):
            tree.body.append(last)  # a final semicolon suppresses the result
            last = None
        closing = last and self.shell.compile(ast.Expression(last.value), name, "eval")
        return self.shell.compile(tree, name, "exec"), closing


def _target(words: list[str]) -> tuple[list[str], str]:
    """Separate the option ``--to FILE`` from the words of a line: return the other words and FILE, "" if it is missing.

    Raises:
        ValueError: FILE is missing, or has an ending that `Recording.save_as` does not know.
    """
    if "--to" not in words:
        return words, ""
    at = words.index("--to")
    if at + 1 == len(words):
        raise ValueError("%%record: got --to without a file; expected a file name after it, such as --to run.html")
    method_for(words[at + 1])
    return words[:at] + words[at + 2 :], words[at + 1]


def load_ipython_extension(shell: Any) -> None:
    """Register the magics with an IPython shell; `%load_ext flnb` calls this."""
    magics = Magics(shell)
    shell.register_magic_function(magics.flnb, "line", "flnb")
    shell.register_magic_function(magics.record, "cell", "record")
    shell.register_magic_function(magics.ranks, "cell", "ranks")
    show.register(shell)
    if os.environ.get("FLNB_TUNE_GC") == "1":  # set by `flnb lab`: fewer pauses of the cyclic collector
        tune_gc()
