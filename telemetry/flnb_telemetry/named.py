"""Events with names in place of ids: as data frames, as Arrow tables, and as tables for SQL queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flnb_telemetry import device_words, quantity, schema
from flnb_telemetry.extras import require
from flnb_telemetry.intern import NONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from flnb_telemetry.intern import Catalog
    from flnb_telemetry.recording import Recording
    from flnb_telemetry.schema import Ints

CODES = {"category": schema.CATEGORIES, "direction": schema.DIRECTIONS, "route": device_words.ROUTES}


class Names(NamedTuple):
    """A column with few different values, each stored once: the value in row i is `values[ids[i]]`."""

    ids: NDArray[Any]
    values: Sequence[Any]

    def texts(self) -> Any:
        """Return the column as an Arrow array of texts, each of which is stored once.

        Parts of names that UTF-8 cannot represent, such as bytes of a file's name, become "?".
        """
        arrow = require("pyarrow", "lab", "an Arrow table")
        used, numbers = np.unique(self.ids, return_inverse=True)
        known: dict[str, int] = {}
        codes = [known.setdefault(_text(self.values[i]), len(known)) for i in used.tolist()]
        return arrow.DictionaryArray.from_arrays(
            arrow.array(np.array(codes, np.int32)[numbers]), arrow.array(list(known), arrow.string())
        )


def _text(value: Any) -> str:
    text = quantity.extents(value) if isinstance(value, tuple) else str(value)
    return text.encode("utf-8", "replace").decode("utf-8")


def columns(catalog: Catalog, found: schema.Columns, earlier: Ints = NONE) -> tuple[dict[str, Any], Ints]:
    """Return a table with names in place of ids, as arrays and `Names` by column, and all forward ops so far.

    The forward ops are those of the table and of the tables before it, in the form that `Catalog.places` returns. A
    table with "t0" and "t1" gets a column "seconds".

    Args:
        catalog: the names behind the ids.
        found: the table, with times in seconds; these are returned unchanged.
        earlier: the forward ops of the tables before this one, in the same form.
    """
    found, named = dict(found), dict[str, Any]()
    if "plan" in found:
        plan = found.pop("plan")
        for part in ("op", "family", "dtype", "shape"):
            named[part] = Names(plan, [getattr(each, part) for each in catalog.plans.items])
        named["nbytes"] = catalog.nbytes[plan]
    if "context" in found:
        context = found.pop("context")
        scope, phase, earlier = catalog.places(context, found.get("node", np.zeros_like(context)), earlier)
        named["scope"] = Names(scope, catalog.strings.items)
        named["phase"] = Names(phase, schema.PHASES)
        for name in ("line", "stack"):
            named[name] = Names(getattr(catalog, name)[context], catalog.strings.items)
    for name, values in CODES.items():
        if name in found:
            found[name] = Names(found[name], values)  # type: ignore[assignment]
    if "name" in found:
        found["name"] = Names(found["name"], catalog.strings.items)  # type: ignore[assignment]
    if "t0" in found:
        found["seconds"] = found["t1"] - found["t0"]
    return named | found, earlier


def frame(run: Recording, kind: str) -> Any:
    """Return the events of one kind as a pandas DataFrame."""
    named, _ = columns(run.catalog, run.in_seconds(run.table(kind)))
    objects = {
        name: np.fromiter(column.values, object, len(column.values))[column.ids]
        if isinstance(column, Names)
        else column
        for name, column in named.items()
    }
    return require("pandas", "lab", "a DataFrame").DataFrame(objects)


def arrow(run: Recording, kind: str) -> Any:
    """Return the events of one kind as an Arrow table, converted piece by piece; a name takes 4 bytes per row."""
    module = require("pyarrow", "lab", "an Arrow table")
    run.catalog.refresh()
    pieces, earlier = [], NONE
    for chunk in run.chunks(kind):
        named, earlier = columns(run.catalog, run.in_seconds(chunk), earlier)
        pieces.append(_arrow(module, named))
    whole = module.concat_tables(pieces or [_arrow(module, columns(run.catalog, run.in_seconds(run.table(kind)))[0])])
    return whole.unify_dictionaries()


def _arrow(module: Any, named: dict[str, Any]) -> Any:
    return module.table({name: c.texts() if isinstance(c, Names) else c for name, c in named.items()})


def _memory(run: Recording) -> Any:
    """Return the blocks of memory as an Arrow table, with the seconds at which each was freed (null if it was not)."""
    block, never = run.memory.block, np.iinfo(np.int64).max
    named, _ = columns(run.catalog, run.in_seconds({k: v for k, v in block.items() if k not in ("end", "dropped")}))
    module = require("pyarrow", "lab", "an Arrow table")
    freed = module.array(run.seconds_at(block["end"].astype(float)), mask=block["end"] == never)
    return _arrow(module, named).append_column("freed", freed)


def _columns_of(make: Callable[[Recording], Iterator[tuple[str, schema.Columns]]]) -> Callable[[Recording], Any]:
    """Return a function that makes an Arrow table of a recording from the named groups of rows that `make` yields."""

    def table(run: Recording) -> Any:
        module = require("pyarrow", "lab", "an Arrow table")
        empty = {"step": np.empty(0, np.int64), "t": np.empty(0), "value": np.empty(0)}
        groups = list(make(run)) or [("", empty)]
        rows = [len(next(iter(group.values()))) for _, group in groups]
        name = Names(np.repeat(np.arange(len(groups)), rows), [name for name, _ in groups])
        whole = {key: np.concatenate([group[key] for _, group in groups]) for key in groups[0][1]}
        return _arrow(module, {"name": name} | whole)

    return table


TABLES: dict[str, Callable[[Recording], Any]] = {
    "ops": lambda run: arrow(run, "op"),
    "memory": _memory,
    "scopes": lambda run: arrow(run, "scope"),
    "steps": lambda run: require("pyarrow", "lab", "SQL").table(run.steps),
    "metrics": _columns_of(lambda run: iter(run.metrics.items())),
}
"""The functions that make the tables for SQL queries; in addition there is a table for each kind of event."""


def query(run: Recording, text: str, *parameters: Any) -> Any:
    """Return the answer of DuckDB to a SQL query on a recording (see `Recording.sql`)."""
    if not isinstance(text, str):
        raise TypeError(f"run.sql: got {type(text).__name__}, expected a query as a string, such as 'from ops limit 3'")
    duckdb = require("duckdb", "lab", "run.sql")
    made = TABLES | {kind: (lambda run, kind=kind: arrow(run, kind)) for kind in schema.KINDS}
    words = set(re.findall(r"\w+", text.lower()))
    settings = {"autoinstall_known_extensions": False, "python_enable_replacements": False}  # no variable is a table
    with duckdb.connect(":memory:", config=settings) as connection:
        for name in sorted(words & made.keys()):
            connection.register(name, made[name](run))
        try:
            if not connection.extract_statements(text):
                raise ValueError("run.sql: the query is empty; expected SQL such as 'from ops limit 3'")
            return connection.execute(text, list(parameters)).df()
        except duckdb.Error as error:
            hint = "\nGROUP BY takes a name for a column's before it is an alias's" if "GROUP BY" in str(error) else ""
            raise ValueError(
                f"run.sql: {str(error).strip()}{hint}\nThe tables are {', '.join(TABLES)}, and one for each kind of "
                f"event ({', '.join(schema.KINDS)}); 'from ops limit 3' shows the columns of one"
            ) from error
