/** Sections of a frame that come whole each time they change: the calls of ranks, what devices did, and what threads did. */

import { CollectivesModel, sectionColumns } from "./collectives/model.ts";
import { deviceColumns, DevicesModel } from "./devices/model.ts";
import { intern } from "./arrivals.ts";
import type { Frame, KernelInfo } from "./protocol.ts";
import type { Store } from "./store.ts";
import { ThreadsModel } from "./threads/model.ts";

export function takeSections(store: Store, { head, columns }: Frame): void {
  const calls = head.collectives && sectionColumns(columns);
  if (head.collectives && calls) {
    store.collectives = new CollectivesModel(head.collectives, calls);
    store.versions.collectives++;
  }
  if (head.timeline) {
    store.timeline ??= new ThreadsModel();
    store.timeline.take(head.timeline, columns);
    store.versions.timeline++;
  }
  const tasks = head.devices && deviceColumns(columns);
  if (head.devices && tasks) {
    store.devices = new DevicesModel(head.devices, tasks);
    store.versions.devices++;
  }
}

/** Kernels of several ops: what they are, and the table of their times. `steps` have been made by then. */
export function takeKernels(store: Store, { head, columns }: Frame, steps: number): void {
  intern(store.kernelInfos, head.kernels);
  if (!columns["kernel.name"]) return;
  const infos = new Map(store.kernelInfos.map((info) => [info.name, info]));
  store.kernels = store.tables.rows(columns, "kernel", steps).map((row) => ({ ...row, family: familyOfKernel(store, infos.get(row.name)) }));
  store.versions.ops++;
}

/** The family of the op with the largest share. */
export function familyOfKernel(store: Store, kernel: KernelInfo | undefined): string {
  const most = kernel?.parts.reduce((one, other) => (other[2] > one[2] ? other : one));
  return most ? store.plan(most[0])?.family ?? "" : "";
}
