"""Recordings of several ranks on one clock: a mapping from rank to `Recording`, which can be saved in one file.

The ids and times in each recording are those of its process and are not changed. The clocks are related by offsets:
each rank has an offset from the clock of the first rank, and a bound of the offset's error.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flnb_telemetry import quantity, tables
from flnb_telemetry.analysis.collectives import Collectives, collectives
from flnb_telemetry.analysis.joining import PAIRS, View, of_recording
from flnb_telemetry.exports import Drawn
from flnb_telemetry.formats import aside, foreign, parquet
from flnb_telemetry.recording import Recording
from flnb_telemetry.safe_text import safe_text

if TYPE_CHECKING:
    import os

LEAVES_EARLY = (*PAIRS, "broadcast")
"""Calls that a rank may finish before all ranks have made them."""


class Ranks(Drawn, Mapping[int, Recording]):
    """The recordings of the ranks of one program, by rank, on a common clock.

    `flnb.load_run` returns a `Ranks` for a file that `save` or ``flnb merge`` wrote.

    Args:
        runs: one recording of each rank, or paths of their files.

    Attributes:
        offsets: for each rank, the ns to add to its recording's times to obtain times on the first rank's clock.
        bounds: for each rank, the largest error of its offset, ns.

    Raises:
        ValueError: two recordings are of the same rank, one is of several ranks, or clocks cannot be compared.

    >>> import flnb
    >>> with flnb.record("digits") as run:  # under mpiexec each rank saves its own: run.save(f"run-{rank}.flnb")
    ...     y = flnb.ones(3) * 2.0
    >>> run.meta["rank"] = 0
    >>> ranks = flnb.telemetry.Ranks([run])
    >>> ranks.save("digits.flnb")
    >>> flnb.load_run("digits.flnb")[0].ops["multiply"].count
    1
    """

    def __init__(self, runs: Iterable[Recording | str | os.PathLike[str]]) -> None:
        found: dict[int, Recording] = {}
        for run in runs:
            loaded = run if isinstance(run, Recording) else parquet.load_run(run)
            for one in loaded.values() if isinstance(loaded, Ranks) else [loaded]:
                rank = _rank_of(one)
                if rank in found:
                    raise ValueError(f"Ranks: {found[rank].name!r} and {one.name!r} are both of rank {rank}; omit one")
                found[rank] = one
        if not found:
            raise ValueError("Ranks: got no recordings; expected one of each rank")
        self._runs = dict(sorted(found.items()))
        views = {rank: _only(run, rank) for rank, run in self._runs.items()}
        base = next(iter(views.values()))
        measured = {rank: _measured(run, rank) for rank, run in self._runs.items()}
        clocks = {rank: _clock(measured[rank], view, measured[base.rank], base) for rank, view in views.items()}
        self.offsets = {rank: offset for rank, (offset, _) in clocks.items()}
        self.bounds = {rank: bound for rank, (_, bound) in clocks.items()}

    def __getitem__(self, rank: int) -> Recording:
        if rank not in self._runs:
            raise KeyError(f"no rank {rank!r} in this run; it has {', '.join(map(str, self._runs))}")
        return self._runs[rank]

    def __iter__(self) -> Iterator[int]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __getattr__(self, name: str) -> NoReturn:
        first = next(iter(self.__dict__.get("_runs", [0])))
        raise AttributeError(
            f"a run of several ranks has no {name!r}; take the recording of one rank, such as run[{first}].{name}"
        )

    @property
    def name(self) -> str:
        """Return the name of the run, which is that of its first rank."""
        return next(iter(self._runs.values())).name

    def views(self) -> list[View]:
        """Return the ranks in the form that analyses read, with times on the common clock."""
        return [_only(run, rank, self.offsets[rank], self.bounds[rank]) for rank, run in self._runs.items()]

    @property
    def collectives(self) -> Collectives:
        """Return the collective calls of all ranks, joined: lateness and its reasons, waiting, overlap."""
        return collectives(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all ranks to one `.flnb` file, which `flnb.load_run` reads. Needs pyarrow."""
        with aside(path) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            for rank, run in self._runs.items():
                buffer = io.BytesIO()
                with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as inner:
                    parquet.write(run, inner)
                archive.writestr(f"rank-{rank}.flnb", buffer.getbuffer())
            manifest = {
                "format": parquet.RANKS,
                "version": parquet.FORMAT_VERSION,
                "schema": 0,
                "ranks": list(self._runs),
            }
            archive.writestr("manifest.json", json.dumps(manifest))

    def save_html(self, path: str | os.PathLike[str]) -> None:
        """Write one HTML file with the dashboard of the first rank and the collective calls of all."""
        foreign("write page")(path, self)

    def cells(self) -> list[list[str]]:
        """Return the table of ranks as rows of texts; the first row has the titles."""
        titles = ["rank", "host", "process", "clock", "recorded", "steps", "events"]
        return [titles] + [
            [
                str(view.rank), safe_text(view.host), str(view.process),
                f"±{quantity.duration(view.bound)}" if view.bound else "same" if number else "base",
                quantity.duration(run.seconds * 1e9), str(len(run.steps["index"])), quantity.count(run.events),
            ]
            for number, (view, run) in enumerate(zip(self.views(), self._runs.values(), strict=True))
        ]  # fmt: skip

    def __repr__(self) -> str:
        return "\n".join([*tables.lines(self.cells(), "><>>>>>"), repr(self.collectives)])

    def _repr_html_(self) -> str:
        return tables.html(self.cells(), "><>>>>>") + self.collectives._repr_html_()


def restored(archive: zipfile.ZipFile, manifest: dict[str, Any]) -> Ranks:
    """Read the ranks of a merged file."""
    found = []
    for rank in manifest["ranks"]:
        with zipfile.ZipFile(io.BytesIO(parquet.member(archive, f"rank-{int(rank)}.flnb"))) as inner:
            own = json.loads(parquet.member(inner, "manifest.json"))
            parquet.check(f"rank-{rank}.flnb", own)
            found.append(parquet.read(inner, own))
    return Ranks(found)


def _rank_of(run: Recording) -> int:
    """Return the rank that a recording belongs to, from its metadata or its calls."""
    if "rank" in run.meta:
        return int(run.meta["rank"])
    ranks = [view.rank for view in of_recording(run)]
    if len(ranks) == 1:
        return ranks[0]
    if not ranks:
        raise ValueError(
            f"Ranks: the recording {run.name!r} does not say of which rank it is; record after flnb.distributed.init()"
        )
    raise ValueError(
        f"Ranks: expected recordings of one rank each, but {run.name!r} is of the ranks {', '.join(map(str, ranks))}, "
        f"threads of one process; use run.collectives of that recording instead"
    )


def _only(run: Recording, rank: int, offset: int = 0, bound: int = 0) -> View:
    """Return the `View` of a recording that has a single rank.

    ``offset`` is the ns to add to the recording's times, ``bound`` the largest error of these times in ns.
    """
    (view,) = of_recording(run, offset, bound)
    return view._replace(rank=rank)


def _measured(run: Recording, rank: int) -> tuple[int, int] | None:
    """Return the measured offset of a recording's clock from rank 0's, and its error bound, ns; None if unmeasured."""
    sync = run.table("clock_sync")
    if len(sync["bound"]):
        best = sync["bound"].argmin()
        return int(sync["offset"][best]), int(sync["bound"][best])
    if "clock_offset" in run.meta:
        return int(run.meta["clock_offset"]), int(run.meta["clock_bound"])
    return None if rank else (0, 0)


def _clock(own: tuple[int, int] | None, view: View, of_base: tuple[int, int] | None, base: View) -> tuple[int, int]:
    """Return the offset of a rank's clock from the first rank's, and the bound of its error, ns.

    The measured offset is used if there is one. Otherwise the offset is 0 if both ranks ran on one host; else it is
    derived from the calls of both ranks. The offset is also derived from the calls if these contradict the measurement.

    Args:
        own, of_base: the offsets and bounds measured for the rank and for the first rank; None if unmeasured.
        view, base: the events of the rank and of the first rank.
    """
    if view.rank == base.rank:
        return 0, 0
    measured = (own[0] - of_base[0], own[1] + of_base[1]) if own and of_base else None
    if view.host == base.host:
        return measured or (0, 0)
    derived = _from_calls(view, base)
    if measured and (derived is None or abs(measured[0] - derived[0]) <= measured[1] + derived[1]):
        return measured
    if derived is None:
        raise ValueError(
            f"Ranks: rank {view.rank} ran on host {view.host!r}, rank {base.rank} on {base.host!r}, and they have no "
            f"calls in common: their clocks cannot be compared; call flnb.distributed.sync_clocks() while recording"
        )
    return derived  # the clocks have drifted since they were compared


def _from_calls(view: View, base: View) -> tuple[int, int] | None:
    """Return the ns to add to a rank's times to obtain times on the clock of the rank `base`, and the largest error.

    Both are derived from the calls that the two ranks have in common.
    With this offset no rank finishes a call before the other has made it. Return None without common calls.
    """
    ours, theirs = (_ended(one) for one in (view, base))
    both = sorted(ours.keys() & theirs.keys())
    if not both:
        return None
    mine, others = (np.array([calls[key] for key in both], np.int64).T for calls in (ours, theirs))
    least, most = int((others[0] - mine[1]).max()), int((others[1] - mine[0]).min())
    return (least + most) // 2, abs(most - least + 1) // 2


def _ended(view: View) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the begin and end (ns) of a rank's calls, by group and sequence number.

    Only calls are returned that cannot end before all ranks have made them.
    """
    ended, plans, groups = view.table("collective"), view.catalog.plans.items, view.catalog.groups.items
    columns = (ended[name].tolist() for name in ("plan", "group", "seq", "t0", "t1"))
    return {
        (groups[group].name, seq): (t0, t1)
        for plan, group, seq, t0, t1 in zip(*columns, strict=True)
        if plans[plan].op not in LEAVES_EARLY and groups[group].size > 1
    }
