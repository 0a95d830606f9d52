/** The table behind the picture: one row a launch or copy, in the order in which the host asked for them. */

import { measured, UNKNOWN } from "../format.ts";
import type { Store } from "../store.ts";
import type { Cell, DataTable } from "../view.ts";
import type { DevicesModel } from "./model.ts";
import { taskName } from "./names.ts";

export function taskTable(model: DevicesModel | null, store: Store): DataTable {
  const emulated = model?.emulated === true;
  const columns = ["Task", "Step", "Kernel or copy", "Op", "Scope", "Device", "Stream", "Grid × block", "Bytes", emulated ? "Ran as" : "Time", ...(emulated ? [] : ["Queued"])];
  if (!model) return { caption: "Tasks of devices", columns, rows: [] };
  const rows = Array.from({ length: model.rows }, (_, task) => {
    const kernel = model.kernel(task);
    const [begin, end] = model.ran(task);
    const time = (ms: number): Cell => measured.duration(ms * 1e6);
    return [
      model.seq(task), model.stepOf(task)?.step ?? UNKNOWN, taskName(model, task), store.plan(model.plan(task))?.op ?? UNKNOWN, store.context(model.context(task))?.scope || UNKNOWN,
      model.section.devices[model.device(task)]?.place ?? "", model.stream(task), kernel?.grid.length ? `[${kernel.grid.join(", ")}] × [${kernel.block.join(", ")}]` : UNKNOWN,
      measured.bytes(model.route(task) ? model.bytes(task) : NaN),
      ...(emulated ? [model.ranAs(task) < 0 ? UNKNOWN : model.ranAs(task) + 1] : [time(end - begin), time(model.queued(task))]),
    ];
  });
  return { caption: `Launches and copies in the order in which the host asked for them${model.section.note ? `; ${model.section.note}` : ""}`, columns, rows, units: ["", "", "", "", "", "", "", "", "", emulated ? "" : "ns", "ns"] };
}
