/** The Memory panel of the overview and the Memory view. */

import type { View, ViewContext } from "../view.ts";
import { MemoryPanel } from "./panel.ts";
import { MemoryView } from "./view.ts";

export const createMemoryPanel = (context: ViewContext): View => new MemoryPanel(context);
export const createMemoryView = (context: ViewContext): View => new MemoryView(context);
