/** The table behind the picture of ranks over time: one row a call, the newest first. */

import { bytesText, durationText, significant, UNKNOWN } from "../format.ts";
import type { DataTable } from "../view.ts";
import type { CollectivesModel } from "./model.ts";

export function callTable(model: CollectivesModel | null): DataTable {
  const columns = ["Sequence", "Op", "Group", "Step", "Bucket", "Holds", "Bytes", "Last rank", "Late", "Longest wait", "Transfer", "GB/s", "Why"];
  if (!model) return { caption: "Collectives", columns, rows: [] };
  const time = (ms: number): string => durationText(Number.isNaN(ms) ? null : ms * 1e6);
  const rows = [...model.order].reverse().map((call) => {
    const members = model.members(call);
    const late = model.lateRank(call);
    const rate = model.columns["gb_s"]![call]!;
    const transfers = members.map((rank) => model.transfer(rank, call)).filter((ms) => !Number.isNaN(ms));
    return [
      model.seq(call), model.op(call), model.group(call), model.step(call) < 0 ? UNKNOWN : model.step(call), model.bucket(call) < 0 ? UNKNOWN : model.bucket(call), model.holds(call) || UNKNOWN,
      bytesText(model.bytes(call)), late < 0 ? UNKNOWN : model.number(late), late < 0 ? "in bound" : time(model.late(call)),
      time(Math.max(...members.map((rank) => model.waiting(rank, call)))), time(transfers.length ? Math.max(...transfers) : NaN),
      Number.isFinite(rate) ? significant(rate) : UNKNOWN, model.reason(call)?.text ?? (model.pending(call) ? "has not ended" : UNKNOWN),
    ];
  });
  return { caption: "Collective calls of the ranks, the newest first", columns, rows };
}
