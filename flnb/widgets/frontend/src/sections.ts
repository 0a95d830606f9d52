/** Sections of a frame that come whole each time they change: the calls of ranks, and what devices did. */

import { CollectivesModel, sectionColumns } from "./collectives/model.ts";
import { deviceColumns, DevicesModel } from "./devices/model.ts";
import type { Frame } from "./protocol.ts";
import type { Store } from "./store.ts";

export function takeSections(store: Store, { head, columns }: Frame): void {
  const calls = head.collectives && sectionColumns(columns);
  if (head.collectives && calls) {
    store.collectives = new CollectivesModel(head.collectives, calls);
    store.versions.collectives++;
  }
  const tasks = head.devices && deviceColumns(columns);
  if (head.devices && tasks) {
    store.devices = new DevicesModel(head.devices, tasks);
    store.versions.devices++;
  }
}
