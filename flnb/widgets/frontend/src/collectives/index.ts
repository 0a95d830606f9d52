import type { View, ViewContext } from "../view.ts";
import { CollectivesView } from "./view.ts";

export const createCollectivesView = (context: ViewContext): View => new CollectivesView(context);
